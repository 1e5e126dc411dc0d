"""`edgeinfer verify --backends`: several backends beside the float64 reference on the same tokens, by teacher forcing and by greedy generation.

`verify_backends` runs it; the records say what was found and give the object of `--json`. `backends_display` prints them, `html` draws them.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from edgeinfer.backends.onnx.providers import check_provider
from edgeinfer.core.errors import BackendUnavailableError, InvalidRequestError, UnknownChoiceError, UnsupportedModelError
from edgeinfer.verify.corpus import DEFAULT_TOKENS, GREEDY_PROMPTS, teacher_forcing_chunks
from edgeinfer.verify.greedy import SPREAD_LIMIT, GreedySource, error_spread, row_at
from edgeinfer.verify.metrics import Agreement, Logits
from edgeinfer.verify.report import KL_LIMIT, REFERENCE, Bar, below, perplexity_bar
from edgeinfer.verify.run import GREEDY_TOKENS, Clock, Stage, leading_special, room
from edgeinfer.verify.sources import EngineSource, ReferenceSource
from edgeinfer.verify.teacher_forcing import LogitSource, TeacherForcing, teacher_force

if TYPE_CHECKING:
    from edgeinfer import Engine

ORACLE_BACKEND = "llamacpp"
"""Where it is among the backends, no other may be further from the reference than it."""


@dataclass(frozen=True)
class BackendsOptions:
    """What to compare. `tokens`: judged positions of teacher forcing, at least. All backends get the same threads and the same type of cache."""

    backends: tuple[str, ...]
    tokens: int = DEFAULT_TOKENS
    greedy_tokens: int = GREEDY_TOKENS
    threads: int | None = None
    cache_type: str | None = None
    provider: str | None = None  # of the backend onnx, and the share of the graph that it must run: see `BackendOptions`
    minimum_share: float | None = None

    def __post_init__(self) -> None:
        if not self.backends:
            raise InvalidRequestError("no backend was named; give at least one, such as numba")
        if self.provider is not None and "onnx" not in self.backends:
            raise InvalidRequestError(f"provider is {self.provider!r}, but the backend onnx, which alone has some, is not among the backends; name it as well")
        check_provider(self.provider, self.minimum_share)
        if self.greedy_tokens < 1:
            raise InvalidRequestError(f"greedy tokens is {self.greedy_tokens}; it must be a whole number of at least 1")


@dataclass(frozen=True)
class Parting:
    """Where a backend's greedy generation leaves the reference's: the reference's logit of its own token minus that of the backend's, and the standard
    deviation of the error of such a gap, as measured at this place on other tokens."""

    token: int
    reference_token: int
    gap: float
    usual_error: float

    @property
    def within_error(self) -> bool:
        """Whether errors as usual at this place explain it."""
        return self.gap <= SPREAD_LIMIT * self.usual_error


@dataclass(frozen=True)
class GreedyAgreement:
    """One prompt: the first `agreed` of `tokens` are those that the reference generates; `parting` is None when all are."""

    prompt: str
    tokens: int
    agreed: int
    parting: Parting | None


@dataclass(frozen=True)
class BackendFound:
    """What a backend says about itself, the seconds that loading took, and its greedy generation."""

    description: str
    warnings: tuple[str, ...]
    load_seconds: float
    greedy: tuple[GreedyAgreement, ...]

    @property
    def greedy_share(self) -> float:
        """Tokens before a parting, of all that were generated."""
        return sum(item.agreed for item in self.greedy) / sum(item.tokens for item in self.greedy)


@dataclass(frozen=True)
class BackendsReport:
    """Everything that one run found. `missing`: backends that could not run, and why. Engines of the teacher forcing are the backends and REFERENCE."""

    model: str
    threads: int
    cache_type: str | None  # None: each the default of its own
    backends: Mapping[str, BackendFound]
    missing: Mapping[str, str]
    teacher_forcing: TeacherForcing
    seconds: Mapping[str, float] = field(default_factory=dict)

    @property
    def agreement(self) -> Agreement:
        return self.teacher_forcing.total

    def bars(self) -> tuple[Bar, ...]:
        """What every backend must hold; one that was asked for and cannot run misses its bar."""
        bars = [Bar(f"{backend} runs", False, reason) for backend, reason in self.missing.items()]
        found = self.agreement
        for backend in self.backends:
            divergence = found.kl[REFERENCE, backend]
            bars.append(below(f"KL(reference || {backend})", divergence, KL_LIMIT))
            if ORACLE_BACKEND in self.backends and backend != ORACLE_BACKEND:
                theirs = found.kl[REFERENCE, ORACLE_BACKEND]
                name = f"KL(reference || {backend}) at most KL(reference || {ORACLE_BACKEND})"
                bars.append(Bar(name, divergence <= theirs, f"{divergence:.6f} and {theirs:.6f} nats"))
            bars.append(perplexity_bar(found, backend, backend))
            bars.append(_greedy_bar(backend, self.backends[backend].greedy))
        return tuple(bars)

    @property
    def holds(self) -> bool:
        """Whether no bar was missed."""
        return all(bar.holds is not False for bar in self.bars())

    def to_json(self) -> dict[str, Any]:
        """The object of `--json`."""
        parts = {"all": self.agreement, **self.teacher_forcing.by_kind}
        return {
            "model": self.model,
            "threads": self.threads,
            "cache_type": self.cache_type,
            "holds": self.holds,
            "tokens": self.agreement.positions,
            "perplexity_reference": {kind: part.perplexity[REFERENCE] for kind, part in parts.items()},
            "backends": {
                backend: {
                    "description": found.description,
                    "warnings": list(found.warnings),
                    "load_seconds": round(found.load_seconds, 3),
                    "agreement": {kind: _agreement_json(part, backend) for kind, part in parts.items()},
                    "greedy_share": found.greedy_share,
                    "greedy": [_greedy_json(item) for item in found.greedy],
                }
                for backend, found in self.backends.items()
            },
            "missing": dict(self.missing),
            "bars": [{"name": bar.name, "holds": bar.holds, "detail": bar.detail} for bar in self.bars()],
            "seconds": {part: round(value, 3) for part, value in self.seconds.items()},
        }


def _greedy_bar(backend: str, greedy: Sequence[GreedyAgreement]) -> Bar:
    parted = [item.parting for item in greedy if item.parting is not None]
    unexplained = [item for item in parted if not item.within_error]
    detail = f"{len(parted)} of {len(greedy)} prompts part, {len(unexplained)} not explained"
    return Bar(f"{backend}: every greedy parting from the reference within {SPREAD_LIMIT:.0f} times the error usual there", not unexplained, detail)


def _agreement_json(found: Agreement, backend: str) -> dict[str, float]:
    pair = (REFERENCE, backend)
    median, high = np.quantile(found.kl_each[pair], (0.5, 0.99))
    return {
        "kl": found.kl[pair],
        "kl_median": float(median),
        "kl_99th_percentile": float(high),
        "kl_worst": found.kl_worst[pair],
        "top1": found.top1[pair],
        "perplexity": found.perplexity[backend],
    }


def _greedy_json(item: GreedyAgreement) -> dict[str, Any]:
    parting = None
    if item.parting is not None:
        parting = {
            "token": item.parting.token,
            "reference_token": item.parting.reference_token,
            "reference_gap": item.parting.gap,
            "usual_gap_error": item.parting.usual_error,
            "within_error": item.parting.within_error,
        }
    return {"prompt": item.prompt, "tokens": item.tokens, "agreed": item.agreed, "parting": parting}


def verify_backends(model: Path, options: BackendsOptions, stage: Stage = lambda label, total: lambda done: None) -> BackendsReport:
    """Compares every backend with the reference on one GGUF file. A backend that cannot run is named in the report.

    Raises BackendUnavailableError when none can run, UnknownChoiceError for one that there is not, and what loading and reading the file raise.
    """
    clock = Clock()
    engines: dict[str, Engine] = {}
    missing: dict[str, str] = {}
    load_seconds: dict[str, float] = {}
    with ExitStack() as stack:
        loaded = stage("loading", len(options.backends))
        for backend in options.backends:
            began = time.perf_counter()
            try:
                engines[backend] = stack.enter_context(_load(model, backend, options))
            except UnknownChoiceError:
                raise
            except (BackendUnavailableError, UnsupportedModelError) as error:
                missing[backend] = str(error)
            load_seconds[backend] = time.perf_counter() - began
            loaded(1)
        if not engines:
            raise BackendUnavailableError("none of the backends can run: " + "; ".join(f"{backend}: {reason}" for backend, reason in missing.items()))
        clock.seconds["loading"] = sum(load_seconds.values())
        reference = stack.enter_context(closing(ReferenceSource(model)))
        first = next(iter(engines.values()))
        leading = leading_special(first)
        chunks = teacher_forcing_chunks(first.tokenize, leading, options.tokens)
        sources = {backend: EngineSource(engine) for backend, engine in engines.items()}
        all_sources: dict[str, LogitSource] = {REFERENCE: reference, **sources}
        pairs = [(REFERENCE, backend) for backend in engines]
        with clock.part("teacher forcing"):
            forced = teacher_force(chunks, all_sources, pairs, stage("teacher forcing", sum(len(chunk.targets) for chunk in chunks)))
        clock.seconds["of teacher forcing, the reference"] = forced.seconds[REFERENCE]
        prompts = [(prompt, [*leading, *first.tokenize(prompt)]) for prompt in GREEDY_PROMPTS]
        with clock.part("greedy"):
            greedy = compare_greedy_with_reference(prompts, options.greedy_tokens, sources, reference, stage("greedy generation", len(prompts)))
        backends = {
            backend: BackendFound(engine.capabilities.description, tuple(engine.warnings), load_seconds[backend], tuple(greedy[backend]))
            for backend, engine in engines.items()
        }
        threads = first.capabilities.threads
    return BackendsReport(model.stem, threads, options.cache_type, backends, missing, forced, clock.seconds)


def _load(model: Path, backend: str, options: BackendsOptions) -> Engine:
    """One sequence at a time, so that all backends fit into memory together."""
    from edgeinfer import Engine

    context = room(options.greedy_tokens)
    provider, share = (options.provider, options.minimum_share) if backend == "onnx" else (None, None)
    return Engine.load(
        model, backend, context, options.threads, cache_type=options.cache_type, cache_tokens=context, maximum_sequences=1, provider=provider,
        minimum_share=share, prewarm=True, prefix_reuse=False,
    )  # fmt: skip


def compare_greedy_with_reference(
    prompts: Sequence[tuple[str, Sequence[int]]],
    count: int,
    backends: Mapping[str, GreedySource],
    reference: LogitSource,
    progress: Callable[[int], None] = lambda prompts: None,
) -> dict[str, list[GreedyAgreement]]:
    """`count` tokens of each backend after each (prompt, token ids), against what the reference would generate.

    The reference need not generate, which would take a pass over the whole model a token: up to the first token that is not the arg-max of the
    reference's logits over prompt and answer, its own generation is the same. An answer that parts where the pass over another one has the reference's
    logits needs none of its own.
    """
    results: dict[str, list[GreedyAgreement]] = {backend: [] for backend in backends}
    for prompt, token_ids in prompts:
        passes: list[_Pass] = []
        for backend, source in backends.items():
            tokens = tuple(int(token) for token in source.greedy(token_ids, count))
            parted = next((found for known in passes if (found := known.judge(tokens)) is not None), None)
            if parted is None:
                passes.append(_pass_over(token_ids, tokens, reference))
                parted = (passes[-1].agreed, passes[-1].parting_row)
            agreed, row = parted
            parting = None
            if row is not None:
                common = [*token_ids, *tokens[:agreed]]
                pair = [int(row.argmax()), tokens[agreed]]
                error = float(np.sqrt(2.0)) * error_spread(row_at(source, common, len(common) - 1), row, pair)
                parting = Parting(pair[1], pair[0], float(row[pair[0]] - row[pair[1]]), error)
            results[backend].append(GreedyAgreement(prompt, len(tokens), agreed, parting))
        progress(1)
    return results


@dataclass(frozen=True)
class _Pass:
    """The reference over one answer: the first `agreed` tokens are its arg-maxima; `rows` are its logits for these and, unless all agree, the next one."""

    tokens: tuple[int, ...]
    agreed: int
    rows: Sequence[Logits]

    @property
    def parting_row(self) -> Logits | None:
        """Its logits for the first token that is not its arg-max."""
        return self.rows[self.agreed] if self.agreed < len(self.tokens) else None

    def judge(self, tokens: tuple[int, ...]) -> tuple[int, Logits | None] | None:
        """How many tokens of another answer to the same prompt agree, and the logits where it parts; None when that lies behind what is known here."""
        for index, row in enumerate(self.rows):
            if tokens[index] != int(row.argmax()):
                return index, row
        return (self.agreed, None) if self.agreed == len(tokens) else None


def _pass_over(token_ids: Sequence[int], tokens: tuple[int, ...], reference: LogitSource) -> _Pass:
    """The reference's logits for an answer, up to where it parts (64 tokens of a vocabulary of 262,144 are 134 MB)."""
    rows: list[Logits] = []
    for start, block in reference.logits([*token_ids, *tokens[:-1]]):
        for offset, row in enumerate(block):
            index = start + offset - (len(token_ids) - 1)
            if index >= 0:
                rows.append(np.array(row, dtype=np.float64))
                if int(row.argmax()) != tokens[index]:
                    return _Pass(tokens, index, rows)
    return _Pass(tokens, len(tokens), rows)
