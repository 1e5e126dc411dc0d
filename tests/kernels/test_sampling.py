"""Drawing tokens in kernels against the sampler that defines them: the same token for every seed, or none where rounding might matter."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
from numpy.typing import NDArray

from edgeinfer.core.requests import SamplingParams
from edgeinfer.sampling import Sampler
from edgeinfer.sampling.random import uniform
from kernels_numba.executor.step import STEP_WORDS
from kernels_numba.ops.candidates import CANDIDATES, SAMPLING_SCRATCH_BYTES
from kernels_numba.ops.draw_weights import SUM_BYTES
from kernels_numba.ops.draws import draw_records
from kernels_numba.ops.elementwise import MAXIMA_COLUMNS, maxima_width
from kernels_numba.ops.sampling import UNDECIDED
from tests.kernels.support import Memory, StepWords, every_level, run

PARAMS = [
    SamplingParams(temperature=0.8, top_k=40, top_p=0.95),
    SamplingParams(temperature=0.8, top_k=40, top_p=0.95, min_p=0.05),
    SamplingParams(temperature=1.3, top_k=7),
    SamplingParams(temperature=1.0, top_k=1),
    SamplingParams(temperature=0.7, top_p=0.95),
    SamplingParams(temperature=1.5, top_p=0.3, min_p=0.01),
    SamplingParams(temperature=1.0, top_p=0.0),
    SamplingParams(temperature=0.9, min_p=0.02),
    SamplingParams(temperature=0.3, min_p=1.0),
    SamplingParams(temperature=0.8),
    SamplingParams(temperature=0.05),
    SamplingParams(temperature=20.0),
]


@dataclass(frozen=True)
class Case:
    """Rows of logits, and how a token is drawn from each."""

    logits: NDArray[np.float32]
    params: list[SamplingParams]
    uniforms: NDArray[np.float64]


def logits_of(rows: int, columns: int, spread: float = 3.0, seed: int = 0) -> NDArray[np.float32]:
    return (np.random.default_rng([seed, rows, columns]).standard_normal((rows, columns)) * spread).astype(np.float32)


def sampled(level: str, case: Case, workers: int = 2) -> list[int]:
    """What the kernels choose: the logits are weighed, then worker 0 draws. Padding is poisoned."""
    memory = Memory()
    rows, columns = case.logits.shape
    blocks = -(-columns // MAXIMA_COLUMNS)
    source, maxima = memory.matrix(case.logits), memory.matrix((rows, maxima_width(columns)))
    source.full[:, columns:] = np.nan
    sums, scratch = memory.allocate(SUM_BYTES * rows * blocks, 0xFF), memory.allocate(SAMPLING_SCRATCH_BYTES, 0xFF)
    step = StepWords(rows, output_rows=list(range(rows)))
    draws = memory.copy(draw_records([(p.temperature, p.top_k, p.top_p, p.min_p) for p in case.params]))
    chosen, uniforms = memory.copy(np.full((1, rows), -7, np.int32)), memory.copy(case.uniforms)
    for name, array in (("largest", chosen), ("draws", draws), ("uniforms", uniforms)):
        step.words[STEP_WORDS.index(name)] = array.ctypes.data
    run(level, "ops.elementwise", "check_logits", (), [source.address, source.stride, columns, maxima.address, maxima.stride], step, workers)
    assert step.status == 0
    read = [source.address, source.stride, columns, MAXIMA_COLUMNS, maxima.address, maxima.stride, sums.ctypes.data, SUM_BYTES * blocks]
    run(level, "ops.draw_weights", "weigh_logits", (), read, step, workers)
    run(level, "ops.sampling", "sample_tokens", (), [*read, scratch.ctypes.data], step, workers)
    memory.check()
    return chosen[0].tolist()


def expected(case: Case, seeds: list[int]) -> list[int]:
    return [Sampler(params, seed).sample(row, 5) for row, params, seed in zip(case.logits, case.params, seeds, strict=True)]


def rows_with_seeds(logits: NDArray[np.float32], params: list[SamplingParams], first_seed: int = 0) -> tuple[Case, list[int]]:
    seeds = [first_seed + row for row in range(len(logits))]
    return Case(logits, params, np.array([[uniform(seed, 5) for seed in seeds]])), seeds


@every_level
@pytest.mark.parametrize("columns", [3, 50, 4096, 9001, 33000])
def test_the_token_is_the_one_of_the_sampler(level: str, columns: int) -> None:
    for repeat in range(8):
        logits = logits_of(len(PARAMS), columns, spread=(0.5, 2.0, 4.0, 9.0)[repeat % 4], seed=repeat)
        case, seeds = rows_with_seeds(logits, PARAMS, 100 * repeat)
        actual, wanted = sampled(level, case, 1 + repeat % 3), expected(case, seeds)
        undecided = actual.count(UNDECIDED)
        assert [token if token != UNDECIDED else wanted[row] for row, token in enumerate(actual)] == wanted
        assert undecided == 0 or (columns > CANDIDATES and repeat % 4 < 2), "only a flat distribution has more candidates than fit"


@every_level
def test_ties_at_every_border_go_to_the_lower_ids(level: str) -> None:
    logits = np.round(logits_of(len(PARAMS), 6000, spread=2.0))
    logits[:, 17] = 0.0
    logits[:, 18] = -0.0
    for first_seed in range(0, 600, 100):
        case, seeds = rows_with_seeds(logits.astype(np.float32), PARAMS, first_seed)
        assert sampled(level, case) == expected(case, seeds)


@every_level
def test_extreme_logits(level: str) -> None:
    logits = np.full((len(PARAMS), 5000), -3.4e38, np.float32)
    logits[:, 4321] = 3.0e38
    case, seeds = rows_with_seeds(logits, PARAMS)
    assert sampled(level, case) == [4321] * len(PARAMS) == expected(case, seeds)
    equal = np.full((len(PARAMS), 700), -5.0, np.float32)
    case, seeds = rows_with_seeds(equal, PARAMS)
    for row, (token, wanted) in enumerate(zip(sampled(level, case), expected(case, seeds), strict=True)):
        assert token in (wanted, UNDECIDED), PARAMS[row]


@every_level
def test_a_draw_at_a_border_is_left_undecided(level: str) -> None:
    """Where the point of the draw lies within rounding of the border of two tokens, sums in another order could choose another one."""
    logits = np.zeros((1, 8192), np.float32)
    for point, decided in ((0.5, False), (0.5 + 1e-6, True), (0.0, True)):
        token = sampled(level, Case(logits, [SamplingParams(temperature=1.0)], np.array([[point]])))[0]
        assert token == (int(point * 8192) if decided else UNDECIDED)


@every_level
def test_rows_at_temperature_zero_are_left_alone(level: str) -> None:
    case, seeds = rows_with_seeds(logits_of(3, 500), [SamplingParams(temperature=0.8), SamplingParams(), SamplingParams(temperature=0.8, top_k=3)])
    actual = sampled(level, case)
    assert actual[1] == -7 and [actual[0], actual[2]] == [expected(case, seeds)[0], expected(case, seeds)[2]]
