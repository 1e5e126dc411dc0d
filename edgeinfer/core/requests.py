"""What a caller asks for. Filled by the faces and by users of the engine; read by the scheduler and the sampler. Frozen."""

from __future__ import annotations

import sys
from dataclasses import dataclass

from edgeinfer.core.errors import InvalidRequestError

MAXIMUM_SEED = 2**64 - 1


@dataclass(frozen=True)
class SamplingParams:
    """How tokens are chosen and when generation ends.

    `temperature` 0 takes the largest logit (ties: the lower token id). `top_k` 0, `top_p` 1 and `min_p` 0 are off; at least one token always survives.
    `seed` None draws a fresh seed, which the completion reports; the same seed gives the same tokens on any machine, thread count and batch.
    `stop`: texts that end generation; the text before the earliest match is returned; None is no text. `max_tokens` None: until the context is full.

    Raises InvalidRequestError for a value that cannot be honoured.
    """

    max_tokens: int | None = 256
    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    seed: int | None = None
    stop: str | tuple[str, ...] | list[str] | None = ()
    ignore_eos: bool = False

    def __post_init__(self) -> None:
        _integer("max_tokens", self.max_tokens, 1, None, optional=True)
        _number("temperature", self.temperature, 0.0, None)
        _integer("top_k", self.top_k, 0, None)
        _number("top_p", self.top_p, 0.0, 1.0)
        _number("min_p", self.min_p, 0.0, 1.0)
        _integer("seed", self.seed, 0, MAXIMUM_SEED, optional=True)
        if not isinstance(self.stop, str | list | tuple | None):
            raise InvalidRequestError(f"stop is {self.stop!r}; it must be a text, a list of texts or None")
        stop = (self.stop,) if isinstance(self.stop, str) else tuple(self.stop or ())
        for text in stop:
            if not isinstance(text, str) or not text:
                raise InvalidRequestError(f"stop holds {text!r}; each stop must be a text of at least one character")
        object.__setattr__(self, "stop", stop)

    @property
    def stop_texts(self) -> tuple[str, ...]:
        """`stop` as a tuple, whatever it was given as."""
        return tuple(self.stop or ())


def _number(name: str, value: object, low: float, high: float | None) -> None:
    largest = sys.float_info.max if high is None else high
    if isinstance(value, bool) or not isinstance(value, int | float) or not low <= value <= largest:
        wanted = f"a number of at least {low:g}" if high is None else f"a number from {low:g} to {high:g}"
        raise InvalidRequestError(f"{name} is {value!r}; it must be {wanted}")


def _integer(name: str, value: object, low: int, high: int | None, optional: bool = False) -> None:
    if value is None and optional:
        return
    if isinstance(value, bool) or not isinstance(value, int) or value < low or (high is not None and value > high):
        wanted = f"a whole number of at least {low}" if high is None else f"a whole number from {low} to {high}"
        raise InvalidRequestError(f"{name} is {value!r}; it must be {wanted}{' or None' if optional else ''}")
