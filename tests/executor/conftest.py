"""Fixtures of the run loop's tests: kernels compiled once for this machine, a store, a step of one row."""

from __future__ import annotations

import numpy as np
import pytest

from kernels_numba.executor.step import StepRecord
from kernels_numba.executor.store import KernelName, KernelStore
from tests.arm64 import emulation
from tests.executor.kernels import KERNELS, name_of
from tests.kernels.support import KERNEL_FOLDER
from tests.support.kernels import compile_kernels, lowest_level


@pytest.fixture(scope="session")
def kernel_addresses() -> dict[KernelName, int]:
    return dict(zip(map(name_of, KERNELS), compile_kernels(lowest_level(), KERNELS)))


@pytest.fixture(scope="session")
def store(tmp_path_factory: pytest.TempPathFactory) -> KernelStore:
    if emulation.prepared is not None:  # the run loop was compiled before, for kernels of a store are compiled by a child process
        return KernelStore(lowest_level(), KERNEL_FOLDER)
    directory = tmp_path_factory.mktemp("kernels")
    directory.chmod(0o700)
    return KernelStore(lowest_level(), directory)


@pytest.fixture
def step() -> StepRecord:
    record = StepRecord(maximum_rows=8, maximum_sequences=1, cache_groups=0)
    one = np.zeros(1, np.int32)
    record.fill(one, one, one, one, one, [[]])
    return record
