"""What `edgeinfer verify` found, the bars it is judged by, and the object that `--json` prints. No engine and no terminal here."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from edgeinfer.verify.greedy import GreedyComparison
from edgeinfer.verify.metrics import Agreement, Pair
from edgeinfer.verify.teacher_forcing import TeacherForcing
from edgeinfer.verify.token_ids import TokenIds

OURS, ORACLE, REFERENCE = "ours", "oracle", "reference"

PAIRS: tuple[Pair, ...] = ((REFERENCE, OURS), (REFERENCE, ORACLE), (ORACLE, OURS))

KL_LIMIT = 0.02  # nats: a reference further than this from llama.cpp computes another model
PERPLEXITY_LIMIT = 0.01  # relative
PERPLEXITY_TOKENS = 1000
"""From so many on a perplexity is judged: by chance it is sqrt(2 KL / tokens) apart, which is 0.3 % then and 1.3 % for 60 (KL 0.005)."""


@dataclass(frozen=True)
class Bar:
    """One promise and whether it holds; None when what it needs was not there (an oracle, tokens enough)."""

    name: str
    holds: bool | None
    detail: str

    @property
    def verdict(self) -> str:
        """`holds` for a person."""
        return {True: "yes", False: "NO", None: "not judged"}[self.holds]


@dataclass(frozen=True)
class VerifyReport:
    """Everything that one run of verify found. `token_ids` and `greedy` are None without the oracle."""

    model: str
    backend: str
    descriptions: Mapping[str, str]  # engine -> what it is, for a person
    token_ids: TokenIds | None
    teacher_forcing: TeacherForcing
    greedy: tuple[GreedyComparison, ...] | None
    seconds: Mapping[str, float]  # part -> wall-clock seconds
    notes: tuple[str, ...] = ()

    @property
    def agreement(self) -> Agreement:
        return self.teacher_forcing.total

    def bars(self) -> tuple[Bar, ...]:
        """Every bar, in the order in which a later one relies on an earlier."""
        found = self.agreement
        with_oracle = ORACLE in found.perplexity
        bars = [_token_bar(self.token_ids)]
        if with_oracle:
            bars.append(below("KL(reference || llama.cpp)", found.kl[REFERENCE, ORACLE], KL_LIMIT))
            bars.append(perplexity_bar(found, ORACLE, "llama.cpp"))
            ours, theirs = found.kl[REFERENCE, OURS], found.kl[REFERENCE, ORACLE]
            bars.append(Bar("KL(reference || ours) at most KL(reference || llama.cpp)", ours <= theirs, f"{ours:.6f} and {theirs:.6f} nats"))
        else:
            bars.append(Bar("KL(reference || llama.cpp)", None, "llama.cpp was left out"))
            bars.append(below("KL(reference || ours)", found.kl[REFERENCE, OURS], KL_LIMIT))
        bars.append(perplexity_bar(found, OURS, "ours"))
        bars += _greedy_bars(self.greedy)
        return tuple(bars)

    @property
    def holds(self) -> bool:
        """Whether no bar was missed. A bar that could not be judged is not missed; the report names it."""
        return all(bar.holds is not False for bar in self.bars())

    def to_json(self) -> dict[str, Any]:
        """The object of `--json`. Figures that need llama.cpp are null without it."""
        found = self.agreement
        return {
            "model": self.model,
            "backend": self.backend,
            "engines": dict(self.descriptions),
            "holds": self.holds,
            "tokens": found.positions,
            "token_ids_equal": None if self.token_ids is None else self.token_ids.equal,
            "token_encodings": None if self.token_ids is None else self.token_ids.encodings,
            "token_mismatches": [] if self.token_ids is None else [_mismatch_json(mismatch) for mismatch in self.token_ids.mismatches[:20]],
            **_agreement_json(found),
            "by_kind": {kind: {"tokens": part.positions, **_agreement_json(part)} for kind, part in self.teacher_forcing.by_kind.items()},
            "greedy": None if self.greedy is None else [_greedy_json(item) for item in self.greedy],
            "bars": [{"name": bar.name, "holds": bar.holds, "detail": bar.detail} for bar in self.bars()],
            "seconds": {part: round(value, 3) for part, value in self.seconds.items()},
            "notes": list(self.notes),
        }


def _token_bar(token_ids: TokenIds | None) -> Bar:
    name = "token ids equal llama.cpp's"
    if token_ids is None:
        return Bar(name, None, "llama.cpp was left out")
    return Bar(name, token_ids.equal, f"{len(token_ids.mismatches)} of {token_ids.encodings} encodings differ ({token_ids.ids} ids)")


def below(name: str, value: float, limit: float) -> Bar:
    """A figure that must stay under a limit, in nats."""
    return Bar(f"{name} below {limit} nats", value < limit, f"{value:.6f} nats")


def perplexity_bar(found: Agreement, engine: str, label: str) -> Bar:
    """An engine's perplexity must be near the reference's, where there are tokens enough to tell."""
    reference, other = found.perplexity[REFERENCE], found.perplexity[engine]
    apart = other / reference - 1
    name, detail = f"perplexity of {label} within {PERPLEXITY_LIMIT:.0%} of the reference", f"{apart:+.3%}"
    if found.positions < PERPLEXITY_TOKENS:
        return Bar(name, None, f"{detail}; {found.positions} tokens are too few, {PERPLEXITY_TOKENS} are needed")
    return Bar(name, abs(apart) <= PERPLEXITY_LIMIT, detail)


def _greedy_bars(greedy: tuple[GreedyComparison, ...] | None) -> list[Bar]:
    name = "every greedy divergence within the error measured there"
    if greedy is None:
        return [Bar(name, None, "llama.cpp was left out")]
    parted = [item for item in greedy if item.divergence is not None]
    unexplained = [item for item in parted if item.divergence is not None and not item.divergence.within_error]
    unlike = [item for item in greedy if not item.same_as_logits]
    return [
        Bar(name, not unexplained, f"{len(parted)} of {len(greedy)} prompts part, {len(unexplained)} not explained"),
        Bar("generated tokens are the arg-maxima of our own logits", not unlike, f"{len(greedy) - len(unlike)} of {len(greedy)} prompts"),
    ]


def _agreement_json(found: Agreement) -> dict[str, float | None]:
    return {
        "kl_reference_ours": found.kl.get((REFERENCE, OURS)),
        "kl_reference_oracle": found.kl.get((REFERENCE, ORACLE)),
        "kl_oracle_ours": found.kl.get((ORACLE, OURS)),
        "kl_reference_ours_worst": found.kl_worst.get((REFERENCE, OURS)),
        "kl_reference_oracle_worst": found.kl_worst.get((REFERENCE, ORACLE)),
        "top1_ours": found.top1.get((REFERENCE, OURS)),
        "top1_oracle": found.top1.get((REFERENCE, ORACLE)),
        "top1_oracle_ours": found.top1.get((ORACLE, OURS)),
        "perplexity_reference": found.perplexity.get(REFERENCE),
        "perplexity_ours": found.perplexity.get(OURS),
        "perplexity_oracle": found.perplexity.get(ORACLE),
    }


def _mismatch_json(mismatch: Any) -> dict[str, Any]:
    return {
        "text": mismatch.text,
        "add_special": mismatch.add_special,
        "parse_special": mismatch.parse_special,
        "ours": list(mismatch.ours),
        "oracle": list(mismatch.oracle),
    }


def _greedy_json(item: GreedyComparison) -> dict[str, Any]:
    parted = item.divergence
    return {
        "prompt": item.prompt,
        "tokens": item.tokens,
        "agreed": item.agreed,
        "same_as_logits": item.same_as_logits,
        "divergence": None
        if parted is None
        else {
            "our_token": parted.our_token,
            "oracle_token": parted.oracle_token,
            "reference_gap": parted.reference_gap,
            "our_gap": parted.our_gap,
            "oracle_gap": parted.oracle_gap,
            "our_gap_error": parted.our_gap_error,
            "oracle_gap_error": parted.oracle_gap_error,
            "our_error": parted.our_error,
            "oracle_error": parted.oracle_error,
            "usual_gap_error": parted.usual_gap_error,
            "within_error": parted.within_error,
        },
    }
