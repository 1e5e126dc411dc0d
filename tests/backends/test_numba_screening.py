"""Greedy tokens found from bounds of the logits: those of the largest logits, for any model, however its output matrix is packed; and when bounds are left."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import cast

import numpy as np
import pytest

from edgeinfer.backends.base import BackendOptions
from edgeinfer.backends.numba import stored
from edgeinfer.backends.numba.ahead import keep_weights
from edgeinfer.backends.numba.backend import NumbaBackend
from edgeinfer.backends.numba.late import LateTape
from edgeinfer.backends.numba.screening import PAUSE, Screening
from edgeinfer.backends.numba.weights import matrix_in_planes
from edgeinfer.core.errors import NonFiniteError
from edgeinfer.gguf.reader import GGUFFile
from edgeinfer.model import build_program, fuse
from kernels_numba.ops.screen import BEST_BYTES, BEST_EXACT, SCREENED_ROWS
from tests.backends.support import Driver, Rows
from tests.support.tiny_models import tiny_gemma3, tiny_llama, tiny_qwen2

CONTEXT = 96
COUNT = 24
MODELS: dict[str, Callable[[Path], Path]] = {
    "tied llama": lambda path: tiny_llama(path, weight_format="Q8_0", tied=True),
    "qwen2": lambda path: tiny_qwen2(path, weight_format="Q8_0"),
    "gemma3": lambda path: tiny_gemma3(path, weight_format="Q8_0"),  # tied, too
}


def load(path: Path, threads: int = 2) -> NumbaBackend:
    return NumbaBackend.load(path, BackendOptions(context=CONTEXT, threads=threads, cache_tokens=24 * CONTEXT, maximum_sequences=16, prewarm=True))


def prompts(count: int) -> list[list[int]]:
    return [np.random.default_rng(number).integers(33, 280, 5 + number).tolist() for number in range(count)]


def check_tokens(backend: NumbaBackend, counts: tuple[int, ...] = (1, 3, SCREENED_ROWS, SCREENED_ROWS + 1)) -> None:
    """Bursts choose what single steps with all logits lead to."""
    driver = Driver(backend)
    everything = prompts(max(counts))
    for number, tokens in enumerate(everything):
        driver.run(Rows(number, 0, tokens[:-1]))
    expected = [driver.greedy(number, tokens, COUNT) for number, tokens in enumerate(everything)]
    last = [Rows(number, len(tokens) - 1, tokens[-1:]) for number, tokens in enumerate(everything)]
    for count in counts:
        assert driver.burst(COUNT, *last[:count]) == expected[:count]
    assert driver.burst(1, last[0]) == [expected[0][:1]]


@pytest.mark.parametrize("name", MODELS)
def test_bursts_choose_the_tokens_of_single_steps(name: str, tmp_path: Path) -> None:
    for threads in (1, 2):
        backend = load(MODELS[name](tmp_path / "model.gguf"), threads)
        try:
            assert backend._screening is not None
            check_tokens(backend)
            assert backend._screening.passes > 0 and backend._screening.exact_tiles >= backend._screening.passes
        finally:
            backend.close()


def test_packed_weights_on_disk_have_bounds_as_well(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EDGEINFER_HOME", str(tmp_path / "home"))
    path = MODELS["tied llama"](tmp_path / "model.gguf")
    assert keep_weights(path).made
    with GGUFFile.open(path) as file:
        assert stored.stored_path(file).exists()
    backend = load(path)
    try:
        assert backend.memory_plan.weights == 0 and backend._screening is not None
        check_tokens(backend, (2,))
    finally:
        backend.close()


@pytest.mark.parametrize("scale", [-0.01, 0.0, np.inf])
def test_a_matrix_that_has_no_bounds_gives_its_tokens_without(scale: float, tmp_path: Path) -> None:
    """A negative scale in one block of the head would turn the bound around; one that is infinite has always been an error."""
    path = MODELS["qwen2"](tmp_path / "model.gguf")
    with GGUFFile.open(path) as file:
        start = int(file.tensor_bytes("output.weight").ctypes.data) - int(file.tensor_bytes("token_embd.weight").ctypes.data)
        table = file.tensor_bytes("token_embd.weight").tobytes()
        place = path.read_bytes().index(table) + start
    content = bytearray(path.read_bytes())
    content[place + 34 * 150 : place + 34 * 150 + 2] = np.float16(scale).tobytes()
    path.write_bytes(content)
    backend = load(path)
    try:
        assert (backend._screening is None) == (scale != 0)
        if np.isinf(scale):
            with pytest.raises(NonFiniteError):
                check_tokens(backend)
        else:
            check_tokens(backend)
    finally:
        backend.close()


def test_which_matrices_lie_in_two_planes(tmp_path: Path) -> None:
    def name(path: Path) -> str | None:
        with GGUFFile.open(path) as file:
            return matrix_in_planes(fuse(build_program(file)))

    assert name(MODELS["tied llama"](tmp_path / "a.gguf")) == "token_embd.weight"
    assert name(MODELS["qwen2"](tmp_path / "b.gguf")) == "output.weight"
    assert name(tiny_llama(tmp_path / "c.gguf", weight_format="Q5_0")) is None
    assert name(tiny_llama(tmp_path / "d.gguf", weight_format="F16")) is None


def test_bounds_that_rule_little_out_are_left_for_a_while() -> None:
    best = np.zeros(2 * BEST_BYTES, np.uint8)
    computed = best.reshape(2, -1)[:, BEST_EXACT : BEST_EXACT + 8].view(np.int64)
    screening = Screening(cast(LateTape, None), best, 1000)

    def burst(rows: int, passes: int, tiles: int) -> bool:
        wanted = screening.wants(rows)
        if wanted:
            computed[:, 0] += [tiles // 2, tiles - tiles // 2]
            screening.note(rows, passes)
        return wanted

    assert all(burst(1, 10, 2000) for _ in range(5))  # a fifth of the tiles
    assert burst(1, 10, 3000)
    assert [burst(1, 10, 100) for _ in range(PAUSE + 2)] == [False] * PAUSE + [True] * 2
    assert burst(4, 1, 900) and burst(1, 10, 100) and not burst(4, 1, 0)  # each number of rows for itself
    assert not screening.wants(SCREENED_ROWS + 1)
    assert screening.exact_tiles == 5 * 2000 + 3000 + 2 * 100 + 900 + 100
