"""`edgeinfer doctor`: what edgeinfer found on this machine, and why it chose what it chose."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from edgeinfer.cli import options

if TYPE_CHECKING:
    from edgeinfer.core.host import UsableCores

LIBRARIES = ("numpy", "numba", "llvmlite", "tokenizers", "jinja2", "typer", "rich", "llama-cpp-python", "onnxruntime", "huggingface_hub")
NOTABLE_FLAGS = (
    "avx2", "fma", "f16c", "bmi2", "avx512f", "avx512bw", "avx512vl", "avx512dq", "avx512_vnni", "avx512vbmi", "gfni", "avx_vnni", "asimd", "asimddp",
    "i8mm", "amx_tile", "amx_int8",
)  # fmt: skip


def doctor(as_json: options.AsJson = False) -> None:
    """Show what was found on this machine. Versions, folders, and the choices that follow from them."""
    from edgeinfer.cli.console import print_json, print_table

    report = examine()
    if as_json:
        print_json(report)
        return
    for title, section in report.items():
        print(title)
        print_table(("", ""), [("  " + name, str(text)) for name, text in section.items()], with_header=False)
        print()


def examine() -> dict[str, dict[str, Any]]:
    """All findings as sections of name and text."""
    import platform
    import sys

    from edgeinfer.cli.console import megabytes
    from edgeinfer.core import env, host
    from edgeinfer.core.errors import InvalidRequestError
    from edgeinfer.core.home import kernel_cache_path
    from edgeinfer.core.version import __version__
    from edgeinfer.pull import describe_home

    memory, resident = host.available_memory(), host.resident_memory()
    try:
        cores = host.worker_threads()
        threads = f"{cores.count}: {cores.reason}"
    except InvalidRequestError as error:  # the doctor answers above all where something is wrong
        cores = host.usable_cores()
        threads = str(error)
    flags = host.instruction_sets()
    level, reason = kernel_level(flags)
    return {
        "edgeinfer": {"version": __version__, "python": f"{platform.python_version()} ({sys.executable})", "system": platform.platform()},
        "machine": {
            "processor": host.processor_name(),
            "worker threads": threads,
            "cores considered": "; ".join(limit.reason for limit in cores.limits),
            "pinned to processors": pinned(cores),
            "available memory": f"{memory.size / 1e6:,.0f} MB: {memory.reason}",
            "memory considered": "; ".join(f"{limit.reason} leaves {limit.amount / 1e6:,.0f} MB" for limit in memory.limits),
            "instruction sets": ", ".join(flag for flag in NOTABLE_FLAGS if flag in flags) or "none that edgeinfer makes use of",
            "instruction-set level": f"{level}: {reason}",
            "caches": ", ".join(f"L{cache.level} {cache.kind.lower()} {cache.size >> 10} kB" for cache in host.caches()) or "unknown",
            "page size": f"{host.page_size()} bytes",
            "this process": f"{megabytes(resident.anonymous)} anonymous, {megabytes(resident.file)} file-backed, {megabytes(resident.peak)} at most",
        },
        "folders": {"home": describe_home(), "compiled kernels": str(kernel_cache_path() or "in memory only")},
        "libraries": {name: library_version(name) for name in LIBRARIES},
        "backends": {"numba": numba_finding(level, reason), **{name: find() for name, find in PROBES.items()}, **installed_findings()},
        "providers of the backend onnx": onnx_providers(),
        "backend auto": measured_backends(),
        "environment": {variable.name: env.value(variable.name) or f"not set ({variable.default}); {variable.purpose}" for variable in env.VARIABLES},
    }


def kernel_level(flags: frozenset[str]) -> tuple[str, str]:
    """The instruction-set level that kernels are compiled for, and why; the error of the choice where there is none."""
    import platform

    from edgeinfer.backends.numba.backend import choose_level
    from edgeinfer.core import env, host
    from edgeinfer.core.errors import BackendUnavailableError
    from kernels_numba.simd.levels import usable_levels

    try:
        level = choose_level()
    except BackendUnavailableError as error:
        return "none", str(error)
    usable = ", ".join(level.name for level in usable_levels(platform.machine(), flags))
    refused = host.refused_matrix_registers()
    without = f"; not x86_amx, whose registers this process may not use: {refused}" if refused else ""
    return level.name, "EDGEINFER_ISA" if env.value("EDGEINFER_ISA") else f"the best of those that this machine can run ({usable}){without}"


def pinned(cores: UsableCores) -> str:
    """Where workers run."""
    if cores.count == 1:
        return "none: a single worker goes where the system puts it"
    if not cores.cpus:
        return "none: more threads than processors"
    return f"{', '.join(map(str, cores.cpus))}; workers are left out while other processes take their cores"


def measured_backends() -> dict[str, str]:
    """What `--backend auto` takes for every model that was measured on this machine, and for others."""
    from edgeinfer.backends.choice import UNMEASURED, kept
    from edgeinfer.core.printable import printable

    found = {f"{printable(item.model)}, threads {item.threads}": f"{item.fastest_first[0]}: {item.describe()}" for item in kept()}
    return found | {"not measured": f"{UNMEASURED[0]} where it runs, else {' or '.join(UNMEASURED[1:])}; `edgeinfer bench MODEL --backends ...` measures"}


def library_version(name: str) -> str:
    """The installed version, read from the package's records: importing could take seconds, or crash."""
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version(name)
    except PackageNotFoundError:
        return "not installed"


def probe(module: str) -> str:
    """Whether a library that we did not build can be imported."""
    from edgeinfer.core.foreign import import_problem

    problem = import_problem(module)
    return "works" if problem is None else problem if problem == "not installed" else f"does not work: {problem}"


def numba_finding(level: str, reason: str) -> str:
    return f"does not work: {reason}" if level == "none" else f"works, with kernels for {level}"


def llamacpp_finding() -> str:
    """Version and build flags, or why there is none."""
    from edgeinfer.backends.llamacpp_library import describe_library
    from edgeinfer.core.errors import BackendUnavailableError

    try:
        return f"works: {describe_library()}"
    except BackendUnavailableError as error:
        return f"does not work: {error}"


def installed_findings() -> dict[str, str]:
    """The backends of other packages, tried in processes of their own."""
    from edgeinfer.backends.load import installed_backends, name_problem
    from edgeinfer.core.foreign import import_problem

    installed = installed_backends()
    found = {}
    for backend in installed:
        entry = backend.entry_point
        problem = name_problem(backend, installed)
        if problem is None:
            trouble = import_problem(entry.module)
            problem = f"works ({entry.value})" if trouble is None else f"does not work: {trouble} ({entry.value})"
        found[f"{backend.name}, of {backend.origin}"] = problem
    return found


def onnx_providers() -> dict[str, str]:
    """The execution providers of ONNX Runtime with their devices, and what to install for the others; looked for in a process of its own."""
    import json

    from edgeinfer.backends.onnx.provider_report import missing_findings
    from edgeinfer.core.foreign import ForeignError, answer_of

    try:
        found: dict[str, str] = json.loads(answer_of("edgeinfer.backends.onnx.provider_report").strip().splitlines()[-1])
    except (ForeignError, ValueError, IndexError) as error:
        return {"looking for them": f"does not work: {error}", **missing_findings()}
    return found


PROBES: dict[str, Callable[[], str]] = {"llamacpp": llamacpp_finding, "onnx": lambda: probe("onnxruntime")}
"""What tries the optional backends of ours."""
