"""One run of verify: loads the engines, compares token ids, teacher forcing and greedy generation, and gives back the report."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from edgeinfer.core.errors import BackendUnavailableError, InvalidRequestError
from edgeinfer.verify.corpus import DEFAULT_TOKENS, GREEDY_PROMPTS, MAXIMUM_CHUNK, teacher_forcing_chunks, tokenizer_texts
from edgeinfer.verify.greedy import GreedyComparison, GreedySource, compare_all_greedy
from edgeinfer.verify.report import ORACLE, OURS, PAIRS, REFERENCE, VerifyReport
from edgeinfer.verify.sources import EngineSource, ReferenceSource
from edgeinfer.verify.teacher_forcing import LogitSource, teacher_force
from edgeinfer.verify.token_ids import TokenIds, compare_token_ids

if TYPE_CHECKING:
    from edgeinfer import Engine

GREEDY_TOKENS = 64

Stage = Callable[[str, int], Callable[[int], None]]
"""`stage(label, total)` announces a part of the work and returns what is called with the amount done since the last call."""


class Clock:
    """Seconds by part of the run."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}

    @contextmanager
    def part(self, name: str) -> Iterator[None]:
        began = time.perf_counter()
        yield
        self.seconds[name] = self.seconds.get(name, 0.0) + time.perf_counter() - began


@dataclass(frozen=True)
class VerifyOptions:
    """What to compare. `tokens`: judged positions of teacher forcing, at least."""

    tokens: int = DEFAULT_TOKENS
    greedy_tokens: int = GREEDY_TOKENS
    backend: str = "numba"
    threads: int | None = None
    cache_type: str | None = None
    instruction_set: str | None = None
    with_oracle: bool = True
    provider: str | None = None  # and the share of the graph that it must run: see `BackendOptions`
    minimum_share: float | None = None

    def __post_init__(self) -> None:
        if self.greedy_tokens < 1:
            raise InvalidRequestError(f"greedy tokens is {self.greedy_tokens}; it must be a whole number of at least 1")


def verify_model(
    model: Path, options: VerifyOptions, stage: Stage = lambda label, total: lambda done: None, say: Callable[[str], None] = lambda text: None
) -> VerifyReport:
    """Compares our engine with llama.cpp and the reference on one GGUF file.

    Without llama-cpp-python (or without `with_oracle`) the report holds what can be had, and a note says what is missing; `say` is called with it before the
    minutes that the rest takes. Raises what loading raises.
    """
    clock = Clock()
    notes: list[str] = []
    with ExitStack() as stack:
        with clock.part("loading"):
            loaded = stage("loading", 1)
            ours = stack.enter_context(_load_ours(model, options))
            oracle = _load_oracle(model, options, notes)
            for missing in notes:
                say(missing)
            if oracle is not None:
                stack.enter_context(oracle)
            reference = stack.enter_context(closing(ReferenceSource(model)))
            loaded(1)
        notes += [*([ours.backend_choice] if ours.backend_choice else []), *ours.warnings]
        token_ids = None
        if oracle is not None:
            with clock.part("token ids"):
                token_ids = _compare_token_ids(model, ours, stage)
        leading = leading_special(ours)
        chunks = teacher_forcing_chunks(ours.tokenize, leading, options.tokens)
        sources: dict[str, LogitSource] = {OURS: EngineSource(ours), REFERENCE: reference}
        if oracle is not None:
            sources[ORACLE] = EngineSource(oracle)
        pairs = [pair for pair in PAIRS if set(pair) <= set(sources)]
        with clock.part("teacher forcing"):
            forced = teacher_force(chunks, sources, pairs, stage("teacher forcing", sum(len(chunk.targets) for chunk in chunks)))
        descriptions = {OURS: ours.capabilities.description, REFERENCE: "NumPy, float64 sums, weights as the file stores them"}
        greedy = None
        if oracle is not None:
            descriptions[ORACLE] = oracle.capabilities.description
            oracle.close()
            if not ours.capabilities.bit_exact_chunks:
                ours.close()
                ours = stack.enter_context(_load_ours(model, options, chunk=1))
            with clock.part("greedy"), _open_oracle(model, options, chunk=1) as single:
                greedy = _compare_greedy(leading, ours, single, reference, options, stage)
    clock.seconds["of teacher forcing, the reference"] = forced.seconds[REFERENCE]
    return VerifyReport(model.stem, options.backend, descriptions, token_ids, forced, greedy, clock.seconds, tuple(notes))


def _load_ours(model: Path, options: VerifyOptions, chunk: int | None = None) -> Engine:
    """What is judged. For greedy generation with `chunk` 1, where the backend gives other bits for a token alone than for the same token in a prompt."""
    from edgeinfer import Engine

    context, threads = room(options.greedy_tokens), options.threads
    return Engine.load(
        model, options.backend, context, threads, chunk=chunk, cache_type=options.cache_type, instruction_set=options.instruction_set,
        provider=options.provider, minimum_share=options.minimum_share, prewarm=True,
        prefix_reuse=False,
    )  # fmt: skip


def _load_oracle(model: Path, options: VerifyOptions, notes: list[str]) -> Engine | None:
    """llama.cpp, or None with a note that says why not."""
    if not options.with_oracle:
        notes.append("llama.cpp was left out as asked: no token ids and no greedy generation were compared")
        return None
    try:
        return _open_oracle(model, options)
    except BackendUnavailableError as error:
        notes.append(f"without llama.cpp no token ids and no greedy generation were compared: {error}")
        return None


def _open_oracle(model: Path, options: VerifyOptions, chunk: int | None = None) -> Engine:
    """llama.cpp at its most exact: float32 cache, flash attention off. With `chunk` 1 it takes one token a step whatever is asked of it, because it gives
    other logits for a token alone than for the same token in a prompt, and an error must be measured on those that it generates with."""
    from edgeinfer import Engine

    return Engine.load(
        model, backend="llamacpp", context=room(options.greedy_tokens), threads=options.threads, cache_type="f32", chunk=chunk, prefix_reuse=False
    )


def room(greedy_tokens: int) -> int:
    """Room for a chunk of teacher forcing, and for a greedy prompt with its answer."""
    return max(MAXIMUM_CHUNK + 8, 64 + greedy_tokens)


def leading_special(engine: Engine) -> list[int]:
    """The ids that the file has put in front of a text (BOS, or none). A letter stands for the text: an empty one may get no BOS."""
    plain, special = engine.tokenize("a"), engine.tokenize("a", add_special=True)
    return special[: special.index(plain[0])]


def _compare_token_ids(model: Path, ours: Engine, stage: Stage) -> TokenIds:
    from edgeinfer.backends.llamacpp_vocabulary import LlamaCppVocabulary

    texts = tokenizer_texts()
    with LlamaCppVocabulary(model) as vocabulary:
        return compare_token_ids(ours.tokenizer, vocabulary, texts, stage("token ids", len(texts)))


def _compare_greedy(
    leading: list[int], ours: Engine, oracle: Engine, reference: LogitSource, options: VerifyOptions, stage: Stage
) -> tuple[GreedyComparison, ...]:
    prompts = [(prompt, [*leading, *ours.tokenize(prompt)]) for prompt in GREEDY_PROMPTS]
    engines: tuple[GreedySource, GreedySource] = (EngineSource(ours), EngineSource(oracle))
    return tuple(compare_all_greedy(prompts, options.greedy_tokens, *engines, reference, stage("greedy generation", len(prompts))))
