"""Fixtures of the run loop's tests: kernels compiled once for this machine, a store, a step of one row."""

from __future__ import annotations

import llvmlite.binding as llvm
import numpy as np
import pytest

from kernels_numba.executor.step import StepRecord
from kernels_numba.executor.store import KernelName, KernelStore
from tests.executor.kernels import KERNELS, name_of, this_level

_alive: list[object] = []  # engines own the code whose addresses are handed out


@pytest.fixture(scope="session")
def kernel_addresses() -> dict[KernelName, int]:
    from kernels_numba.executor.compile import front_end

    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    engine = llvm.create_mcjit_compiler(llvm.parse_assembly(""), llvm.Target.from_default_triple().create_target_machine(jit=True))
    for function in KERNELS:
        name = name_of(function)
        engine.add_object_file(llvm.ObjectFileRef.from_data(front_end(this_level()).compile(name.symbol, function, (), name.integers)))
    engine.finalize_object()
    addresses = {name_of(function): engine.get_function_address(name_of(function).symbol) for function in KERNELS}
    _alive.append(engine)
    return addresses


@pytest.fixture(scope="session")
def store(tmp_path_factory) -> KernelStore:
    directory = tmp_path_factory.mktemp("kernels")
    directory.chmod(0o700)
    return KernelStore(this_level(), directory)


@pytest.fixture
def step() -> StepRecord:
    record = StepRecord(maximum_rows=8, maximum_sequences=1, cache_groups=0)
    one = np.zeros(1, np.int32)
    record.fill(one, one, one, one, one, [[]])
    return record
