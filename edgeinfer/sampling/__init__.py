"""Choosing the next token from logits: pure transforms, a counter-based random generator and the sampler that joins them. Used by the engine.

Everything here gives the same bits on every machine: comparisons, elementwise IEEE operations, sums in a fixed order and an
own exponential decide.
"""

from edgeinfer.sampling.sampler import Sampler, fresh_seed

__all__ = ["Sampler", "fresh_seed"]
