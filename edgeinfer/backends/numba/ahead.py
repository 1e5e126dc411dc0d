"""What can be made before a model is run: its kernels, for any instruction-set level, and its packed weights. Called by `edgeinfer compile` and the pack's
tool."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from edgeinfer.backends.base import BackendOptions
from edgeinfer.backends.numba import stored
from edgeinfer.backends.numba.backend import NumbaBackend, choose_level, plan, weights_identity
from edgeinfer.core import host
from edgeinfer.core.errors import InvalidRequestError, StorageError, UnknownChoiceError
from edgeinfer.core.home import kernel_cache_path
from edgeinfer.core.printable import printable_path
from edgeinfer.gguf.reader import GGUFFile
from kernels_numba.executor.store import KernelName, KernelStore
from kernels_numba.executor.trust import make_own
from kernels_numba.simd.levels import LEVELS, Level

_OPTIONS = BackendOptions(context=64)  # which kernels a model takes depends on none of them but the cache type


@dataclass(frozen=True)
class KernelsMade:
    """Kernels of one level in a folder: how many the models take, how many of them were compiled now, and the bytes of all."""

    level: str
    folder: Path
    kernels: int
    compiled: int
    size: int


@dataclass(frozen=True)
class WeightsKept:
    """Packed weights on disk. `made` is False if they were there, whole and up to date."""

    path: Path
    size: int
    made: bool


def levels_named(names: Sequence[str]) -> list[Level]:
    """Levels by name ("x86_avx2", or "avx2" where that is one level's alone), whether this machine runs them or not; without names, the one that this
    machine uses. Raises UnknownChoiceError."""
    found = []
    for name in names:
        fitting = [level for level in LEVELS if name in (level.name, level.name.split("_", 1)[1])]
        if len(fitting) != 1:
            raise UnknownChoiceError(f"there is no instruction-set level {name!r}; choose among {', '.join(level.name for level in LEVELS)}")
        found += fitting
    return list(dict.fromkeys(found)) or [choose_level()]


def kernels_of(model: Path, cache_types: Sequence[str | None] = (None,)) -> list[KernelName]:
    """All kernels that loading and running a model takes. Raises the errors of opening and planning."""
    needed: dict[KernelName, None] = {}
    with GGUFFile.open(model) as file:
        file.refuse_unsupported_formats()
        for cache_type in cache_types:
            needed.update(dict.fromkeys(plan(file, BackendOptions(context=_OPTIONS.context, cache_type=cache_type)).kernels))
    return list(needed)


def make_kernels(kernels: Sequence[KernelName], level: Level, folder: Path | None, progress: Callable[[int, int], None] | None = None) -> KernelsMade:
    """Compiles what is missing of the kernels into a folder, by default the one that models are run from. `progress` is called with kernels done and in all.

    Raises StorageError when the folder cannot be used or does not take them, InvalidRequestError when there is none.
    """
    place = folder or kernel_cache_path()
    if place is None:
        raise InvalidRequestError("EDGEINFER_CACHE is 'none', so compiled kernels are not kept; name a folder with --output, or unset it")
    obstacle = make_own(place, level.name)
    if obstacle is not None:
        raise StorageError(f"kernels cannot be kept in {printable_path(place)}: {obstacle}; name another folder with --output or EDGEINFER_CACHE")
    store = KernelStore(level, place, host.usable_cores().count)
    try:
        made = store.compile_ahead(kernels, progress)
    except OSError as error:
        raise StorageError(f"kernels could not be written to {printable_path(place)}: {error.strerror or error}; make room or name another folder") from error
    return KernelsMade(level.name, place / level.name, made.kernels, len(made.compiled), made.size)


def keep_weights(model: Path, progress: Callable[[int, int], None] | None = None) -> WeightsKept:
    """Packs a model's weights into the folder of packed weights, unless a whole file of them is there. Raises StorageError, and the errors of loading."""
    with GGUFFile.open(model) as file:
        path = stored.stored_path(file)
        decided = plan(file, _OPTIONS)
        key = weights_identity(file, decided.weights)
        if decided.stored is not None and decided.stored.is_whole():
            return WeightsKept(path, decided.stored.size, False)
    forget_weights(model)
    backend = NumbaBackend.load(model, _OPTIONS, progress)
    try:
        kept = stored.write(path, key, backend.weights_memory)
    finally:
        backend.close()
    return WeightsKept(path, kept.size, True)


def forget_weights(model: Path) -> Path | None:
    """Removes a model's packed weights; where they were, or None if there were none. Raises StorageError."""
    with GGUFFile.open(model) as file:
        path = stored.stored_path(file)
    try:
        path.unlink()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise StorageError(f"{printable_path(path)} cannot be removed: {error.strerror or error}") from error
    return path
