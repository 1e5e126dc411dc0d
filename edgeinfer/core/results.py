"""What a caller gets back. Filled by the engine; read by users and the faces. Frozen."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True)
class Usage:
    """Token counts of one request. Two usages are equal if the same was asked and answered, whatever was found in the cache."""

    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int = field(default=0, compare=False)  # prompt tokens that a prefix hit spared

    @property
    def total_tokens(self) -> int:
        return self.prompt_tokens + self.completion_tokens


@dataclass(frozen=True)
class Timings:
    """Seconds, by a monotonic clock, from the moment the request was accepted."""

    first_token: float
    total: float
    prefill_tokens_per_second: float
    decode_tokens_per_second: float


@dataclass(frozen=True)
class Completion:
    """A finished generation. `finish_reason` is `stop` (an end-of-generation token or a stop text) or `length` (max_tokens or the context)."""

    text: str
    token_ids: tuple[int, ...]
    finish_reason: str
    usage: Usage
    timings: Timings
    seed: int
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True)
class StreamEvent:
    """A piece of a streamed generation. The joined `text` of all events equals the completion's text; the last event carries the `completion`."""

    text: str
    token_ids: tuple[int, ...]
    completion: Completion | None = None

    @property
    def finish_reason(self) -> str | None:
        return self.completion.finish_reason if self.completion else None
