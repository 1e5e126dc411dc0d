"""The numba backend on tiny models of every architecture: close to the float64 reference, and the same bits however the work is cut."""

from __future__ import annotations

import functools
import os
import random
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from edgeinfer.backends.base import BackendOptions
from edgeinfer.backends.numba.backend import NumbaBackend, choose_level
from edgeinfer.core.errors import BackendUnavailableError, EngineClosedError, NonFiniteError
from edgeinfer.core.steps import MAXIMUM_OUTPUT_ROWS
from edgeinfer.gguf.reader import GGUFFile
from edgeinfer.model.reference import reference_logits
from kernels_numba.simd.levels import LEVELS
from tests.backends.support import Driver, Rows
from tests.support.kernels import runnable_levels
from tests.support.tiny_models import tiny_gemma3, tiny_llama, tiny_qwen2

Logits = NDArray[np.float32]
MAKERS = {"llama": tiny_llama, "qwen2": tiny_qwen2, "gemma3": tiny_gemma3}
CONTEXT = 192
SOAK_ROUNDS = 1000 if float(os.environ.get("EDGEINFER_FUZZ_SCALE", "1")) > 1 else 12


def mixed(name: str) -> str:
    """As files have it: the head and the values in more bits than the rest."""
    if name in ("token_embd.weight", "output.weight"):
        return "Q6_K"
    return "Q8_0" if "attn_v" in name else "Q5_0" if "ffn_down" in name else "Q4_K" if "ffn" in name else "F16" if "attn_k" in name else "Q4_1"


FORMATS: dict[str, Any] = {"F32": "F32", "F16": "F16", "BF16": "BF16", "Q8_0": "Q8_0", "Q4_0": "Q4_0", "Q4_K": "Q4_K", "mixed": mixed}


@functools.cache
def folder() -> Path:
    import tempfile

    return Path(_kept.setdefault("folder", tempfile.TemporaryDirectory(prefix="edgeinfer-tests-")).name)


_kept: dict[str, Any] = {}  # removed when the process ends


@functools.cache
def model(architecture: str, format_name: str, tied: bool = False) -> Path:
    path = folder() / f"{architecture}-{format_name}-{tied}.gguf"
    wide = {"width": 256, "feed_forward": 256, "heads": 4, "kv_heads": 2, "head_size": 64} if format_name in ("Q4_K", "mixed") else {}
    return MAKERS[architecture](path, weight_format=FORMATS[format_name], tied=tied, **wide)


def tokens(count: int, seed: int = 0) -> list[int]:
    return random.Random(seed).choices(range(33, 280), k=count)


@contextmanager
def loaded(path: Path, **options: Any) -> Iterator[Driver]:
    fields = {"context": CONTEXT, "threads": 1, "maximum_step_rows": 256, "maximum_sequences": 4, "cache_type": "f32", "cache_tokens": 1024, **options}
    backend = NumbaBackend.load(path, BackendOptions(**fields))
    try:
        yield Driver(backend)
    finally:
        backend.close()


def divergence(expected: NDArray[np.float64], found: Logits) -> float:
    """Mean KL(expected || found) in nats over the rows."""

    def log_shares(logits: NDArray[np.float64]) -> NDArray[np.float64]:
        moved = logits - logits.max(axis=1, keepdims=True)
        return moved - np.log(np.exp(moved).sum(axis=1, keepdims=True))

    first, second = log_shares(expected), log_shares(found.astype(np.float64))
    return float((np.exp(first) * (first - second)).sum(axis=1).mean())


def relative_error(expected: NDArray[np.float64], found: Logits) -> float:
    return float((np.linalg.norm(found - expected, axis=1) / np.linalg.norm(expected, axis=1)).max())


MODELS = [(architecture, format_name, tied) for architecture in MAKERS for format_name in FORMATS for tied in (False, True)
          if tied == (architecture == "gemma3") or format_name in ("F32", "Q4_0", "mixed")]  # fmt: skip


@pytest.mark.parametrize(("architecture", "format_name", "tied"), MODELS)
def test_logits_are_close_to_the_reference(architecture: str, format_name: str, tied: bool) -> None:
    """Float weights: float32 sums alone, a few 1e-6. Quantized ones: int8 activations, whose effect is stated by the divergence."""
    path, ids = model(architecture, format_name, tied), tokens(60)
    with GGUFFile.open(path) as file:
        expected = reference_logits(file, ids)
    with loaded(path) as driver:
        found = driver.whole(1, ids)
    error, kl = relative_error(expected, found), divergence(expected, found)
    print(f"{architecture} {format_name} tied={tied}: relative error {error:.2e}, KL {kl:.2e}")
    if format_name in ("F32", "F16", "BF16"):
        assert error < 2e-5 and kl < 1e-9
    else:
        assert kl < 5e-3 and error < 0.1
    for cache_type in ("f16", "q16_0"):
        with loaded(path, cache_type=cache_type) as driver:
            found = driver.whole(1, ids)
        assert divergence(expected, found) < (1e-5 if format_name in ("F32", "F16", "BF16") else 6e-3)


# -- the same bits


CASES = [("llama", "mixed", False), ("qwen2", "Q8_0", False), ("gemma3", "Q4_0", True), ("gemma3", "F16", True)]
every_case = pytest.mark.parametrize(("architecture", "format_name", "tied"), CASES)
IDS = tokens(150, 3)


@functools.cache
def expected(architecture: str, format_name: str, tied: bool, cache_type: str) -> Logits:
    """All rows in steps of 64 on one thread: what every other way must give bit for bit."""
    with loaded(model(architecture, format_name, tied), cache_type=cache_type) as driver:
        return driver.whole(1, IDS)


def same(found: Logits, wanted: Logits) -> None:
    np.testing.assert_array_equal(found.view(np.uint32), wanted.view(np.uint32))


@every_case
@pytest.mark.parametrize("cache_type", ["f32", "f16", "q16_0"])
@pytest.mark.parametrize("threads", [1, 2, 3])
def test_threads_and_chunks_change_no_bit(architecture: str, format_name: str, tied: bool, cache_type: str, threads: int) -> None:
    wanted = expected(architecture, format_name, tied, cache_type)
    with loaded(model(architecture, format_name, tied), cache_type=cache_type, threads=threads) as driver:
        assert driver.backend.capabilities.threads == threads
        for chunk in (1, 7, 64):
            same(driver.whole(1, IDS, chunk), wanted)
        # all rows in one step; outputs are limited, so those of the last rows
        (last,) = driver.run(Rows(2, 0, IDS, outputs=MAXIMUM_OUTPUT_ROWS))
        same(last, wanted[-MAXIMUM_OUTPUT_ROWS:])


@pytest.mark.parametrize("cache_type", ["f16", "q8_0", "q16_0"])
def test_a_long_context_that_workers_share_changes_no_bit(cache_type: str) -> None:
    """Single rows at 1,090 positions and more: five spans, which three workers divide and the last of them folds."""
    ids, found = tokens(1100), []
    for threads in (1, 2, 3):
        with loaded(model(*CASES[0]), context=1280, cache_tokens=1280, cache_type=cache_type, threads=threads) as driver:
            for start in range(0, 1090, 218):
                driver.run(Rows(1, start, ids[start : start + 218], outputs=1))
            found.append(np.concatenate([driver.run(Rows(1, place, ids[place : place + 1], outputs=1))[0] for place in range(1090, 1100)]))
    same(found[1], found[0])
    same(found[2], found[0])


@pytest.mark.parametrize(("architecture", "format_name", "tied"), [CASES[0], CASES[2]])
def test_many_runs_with_three_workers_soak(architecture: str, format_name: str, tied: bool) -> None:
    """A barrier that is missing shows now and then, where workers are uneven: more of them than cores, and steps of all sizes."""
    wanted = expected(architecture, format_name, tied, "f32")[:50]
    with loaded(model(architecture, format_name, tied), threads=3) as driver:
        for turn in range(SOAK_ROUNDS):
            same(driver.whole(1, IDS[:50], chunk=(1, 2, 5, 8, 17, 50)[turn % 6]), wanted)


@every_case
def test_sharing_a_step_changes_no_bit(architecture: str, format_name: str, tied: bool) -> None:
    wanted = expected(architecture, format_name, tied, "f32")
    with loaded(model(architecture, format_name, tied), threads=2) as driver:
        other = tokens(40, 9)
        alone = driver.whole(1, other)
        driver.run(Rows(2, 0, IDS[:100], outputs=0))
        first, second = driver.run(Rows(2, 100, IDS[100:130]), Rows(3, 0, other[:30]))
        same(first, wanted[100:130])
        same(second, alone[:30])
        second, first = driver.run(Rows(3, 30, other[30:31]), Rows(2, 130, IDS[130:131]))
        same(first, wanted[130:131])
        same(second, alone[30:31])


@every_case
def test_the_order_of_pages_changes_no_bit(architecture: str, format_name: str, tied: bool) -> None:
    wanted = expected(architecture, format_name, tied, "f32")
    with loaded(model(architecture, format_name, tied)) as driver:
        for order in (sorted, lambda pages: sorted(pages, reverse=True)):
            driver._free = [order(pages) for pages in driver._free]
            same(driver.whole(1, IDS), wanted)


@every_case
@pytest.mark.parametrize("level", runnable_levels()[1:], ids=lambda level: level.name)
def test_levels_change_no_bit(architecture: str, format_name: str, tied: bool, level: Any) -> None:
    if level.name.endswith("portable") and format_name == "mixed":
        pytest.skip("compiling six formats where fma is emulated takes too long; the kernels' own tests compare them")
    with loaded(model(architecture, format_name, tied), instruction_set=level.name) as driver:
        assert level.name in driver.backend.capabilities.description
        same(driver.whole(1, IDS), expected(architecture, format_name, tied, "f32"))


@pytest.mark.parametrize("chunk", [1, 7, 64])
@pytest.mark.parametrize("cache_type", ["f32", "f16"])
def test_pages_behind_a_window_may_be_given_away(chunk: int, cache_type: str) -> None:
    """Their entries become -1, as the scheduler writes them, and another sequence writes into the pages at once."""
    wanted = expected("gemma3", "Q4_0", True, cache_type)
    with loaded(model("gemma3", "Q4_0", True), cache_type=cache_type, threads=2) as driver:
        groups = driver.backend.capabilities.cache_groups
        [windowed] = [index for index, group in enumerate(groups) if group.window]
        window, size = groups[windowed].window, groups[windowed].page_size
        parts, given = [], 0
        for start in range(0, len(IDS), chunk):
            parts += driver.run(Rows(1, start, IDS[start : start + chunk]))
            pages = driver._held[1][windowed]
            computed = start + len(IDS[start : start + chunk])
            for index in range(max(0, computed - window + 1) // size):
                if pages[index] >= 0:
                    driver._free[windowed].append(pages[index])  # the next that is taken
                    pages[index] = -1
                    given += 1
                    driver.whole(2, tokens(size, given))
        same(np.concatenate(parts), wanted)
        assert given == (len(IDS) - window + 1) // size
        assert all(page < 0 for page in pages[:given])
        driver._held.clear()


def test_outputs_come_in_the_order_of_their_rows_and_may_be_none() -> None:
    wanted = expected("llama", "mixed", False, "f32")
    with loaded(model("llama", "mixed")) as driver:
        (nothing,) = driver.run(Rows(1, 0, IDS[:20], outputs=0))
        assert nothing.shape == (0, driver.backend.capabilities.vocabulary)
        (nothing,) = driver.run(Rows(1, 20, IDS[20:21], outputs=0))
        (last,) = driver.run(Rows(1, 21, IDS[21:40], outputs=3))
        same(last, wanted[37:40])
        one, _, three = driver.run(Rows(2, 0, IDS[:5], outputs=2), Rows(1, 40, IDS[40:41], outputs=0), Rows(3, 0, IDS[:30], outputs=1))
        same(one, wanted[3:5])
        same(three, wanted[29:30])


# -- values that are not finite


def scaled(path: Path, **factors: float) -> Path:
    """A llama model in which some matrices of the first block are multiplied."""
    random_state = np.random.default_rng(1)
    shapes = {"attn_k": (32, 64), "attn_v": (32, 64), "ffn_gate": (128, 64), "ffn_up": (128, 64), "ffn_down": (64, 128)}
    tensors = {
        f"blk.0.{name}.weight": (random_state.standard_normal(shapes[name]) * factor / np.sqrt(shapes[name][1])).astype(np.float32)
        for name, factor in factors.items()
    }
    return tiny_llama(path, tensors=tensors, weight_format="Q8_0")


@pytest.mark.parametrize("count", [1, 63, 64, 65])
def test_large_activations_are_computed_right(tmp_path: Path, count: int) -> None:
    """Middle activations of the feed-forward around 3e5: beyond what a half float holds, no trouble for float32 and int8 with scales."""
    path, ids = scaled(tmp_path / "large.gguf", ffn_gate=600.0, ffn_up=600.0, ffn_down=1e-4), tokens(count)
    with GGUFFile.open(path) as file:
        largest = []
        wanted = reference_logits(file, ids, observe=lambda operation, value: largest.append(np.abs(value).max()))
    assert max(largest) > 3e5
    for cache_type in ("f16", "f32"):
        with loaded(path, cache_type=cache_type) as driver:
            found = driver.whole(1, ids)
        assert np.isfinite(found).all() and divergence(wanted, found) < 1e-2


@pytest.mark.parametrize("count", [1, 63, 64, 65])
@pytest.mark.parametrize("which", ["attn_k", "attn_v"])
def test_a_cache_that_overflows_is_an_error_and_float32_helps(tmp_path: Path, count: int, which: str) -> None:
    path, ids = scaled(tmp_path / "overflow.gguf", **{which: 2e5}), tokens(count)
    for chunk in (64, 1) if count > 1 else (64,):
        with loaded(path, cache_type="f16") as driver:
            with pytest.raises(NonFiniteError, match=r"overflow\.gguf produced.*not finite.*cache_type='f32'"):
                driver.whole(1, ids, chunk)
    with GGUFFile.open(path) as file:
        wanted = reference_logits(file, ids)
    with loaded(path) as driver:
        found = driver.whole(1, ids)
    assert np.isfinite(found).all()
    assert count > 1 or divergence(wanted, found) < 1e-2  # one-hot attention over int8 activations picks other winners now and then


def test_one_key_that_does_not_fit_is_not_hidden_by_a_weight_of_zero(tmp_path: Path) -> None:
    """One component of the keys is around 60,000 and too large for some tokens; the query's is negative. The score of such a key is -infinity, so its
    weight is 0: softmax alone gives finite values and nobody would know."""
    key_weight, key_bias, query_bias = np.zeros((32, 64), np.float32), np.zeros(32, np.float32), np.zeros(64, np.float32)
    key_weight[[12, 28], 5], key_bias[[12, 28]], query_bias[12::16] = 8_000, 60_000, -1
    path = tiny_qwen2(
        tmp_path / "one.gguf", metadata={"qwen2.rope.freq_base": 1e30},  # component 12 of a head is hardly turned
        tensors={
            "blk.0.attn_k.weight": key_weight, "blk.0.attn_k.bias": key_bias,
            "blk.0.attn_q.weight": np.zeros((64, 64), np.float32), "blk.0.attn_q.bias": query_bias,
        },
    )  # fmt: skip
    with loaded(path, cache_type="f16") as driver:
        for start in range(20):
            with pytest.raises(NonFiniteError):
                driver.run(Rows(start, 0, tokens(30, start)))
            driver.release(start)
    with loaded(path) as driver:
        assert np.isfinite(driver.run(Rows(1, 0, tokens(30)))[0]).all()


def test_a_step_after_an_overflow_works(tmp_path: Path) -> None:
    with loaded(scaled(tmp_path / "overflow.gguf", ffn_up=1e38)) as driver:
        with pytest.raises(NonFiniteError):
            driver.whole(1, IDS[:9])
    with loaded(model("llama", "mixed")) as driver:
        same(driver.whole(1, IDS), expected("llama", "mixed", False, "f32"))


# -- the level


def test_a_level_can_be_forced_and_an_unknown_one_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    usable = runnable_levels()
    monkeypatch.delenv("EDGEINFER_ISA", raising=False)
    assert choose_level() == usable[0]
    for level in usable:
        assert choose_level(level.name) == choose_level(level.name.split("_", 1)[1]) == level
        monkeypatch.setenv("EDGEINFER_ISA", level.name)
        assert choose_level() == level
        assert choose_level(usable[0].name) == usable[0]  # an option beats the environment
    for wanted in ("sse9", "arm_neon" if usable[0].architecture == "x86_64" else "x86_avx2"):
        with pytest.raises(BackendUnavailableError, match=f"'{wanted}' cannot be used on this machine; it can run {usable[0].name}") as caught:
            choose_level(wanted)
        assert all(level.name in str(caught.value) for level in LEVELS)
    monkeypatch.setenv("EDGEINFER_ISA", "sse9")
    with pytest.raises(BackendUnavailableError, match="sse9"):
        NumbaBackend.load(model("llama", "F32"), BackendOptions(context=64))


def test_a_closed_backend_says_so() -> None:
    with loaded(model("llama", "F32")) as driver:
        driver.whole(1, IDS[:5])
        driver.backend.close()
        with pytest.raises(EngineClosedError):
            driver.run(Rows(2, 0, IDS[:5]))


def test_rows_that_no_step_can_hold_are_refused() -> None:
    with loaded(model("llama", "F32"), maximum_step_rows=32) as driver, pytest.raises(ValueError, match="33 rows"):
        driver.run(Rows(1, 0, IDS[:33], outputs=1))
