"""The sampler: parameters and a seed in, one token id a row out. One object per request; the engine's thread calls it."""

from __future__ import annotations

import secrets

import numpy as np
from numpy.typing import NDArray

from edgeinfer.core.requests import SamplingParams
from edgeinfer.sampling.random import uniform
from edgeinfer.sampling.transforms import candidates, draw, keep_min_p, keep_top_p, scale_temperature


def fresh_seed() -> int:
    """A seed nobody chose, from the operating system. 53 bits, so that it survives a trip through JSON."""
    return secrets.randbits(53)


class Sampler:
    """Chooses tokens as `params` say; the choice at an output index depends on the logits, the seed and the index, on nothing else."""

    def __init__(self, params: SamplingParams, seed: int) -> None:
        self._params = params
        self._seed = seed

    @property
    def greedy(self) -> bool:
        """Whether it takes the largest logit, whatever the logits are."""
        return self._params.temperature == 0.0

    def uniform(self, index: int) -> float:
        """The point in [0, 1) at which the output token `index` is drawn."""
        return uniform(self._seed, index)

    def sample(self, logits: NDArray[np.float32], index: int, largest: int | None = None) -> int:
        """The token for float32[vocabulary]; `index` counts the output tokens of the request from 0. `largest`: the first of the largest, if known."""
        params = self._params
        if self.greedy:
            return int(logits.argmax()) if largest is None else largest  # the first of equal maxima: the lower id
        ids, scores = candidates(logits, params.top_k)
        ids, scores = keep_top_p(ids, scores, params.top_p)
        ids, scores = keep_min_p(ids, scores, params.min_p)
        ids, scores = scale_temperature(ids, scores, params.temperature)
        return draw(ids, scores, self.uniform(index))
