"""What the operating system says about this machine: usable cores, available memory, instruction sets, caches, and what this process holds.

The only module of edgeinfer that reads /proc and /sys. Anyone may call it. Every function takes `root`, the folder that stands for "/", so that tests
feed recorded trees; nothing here fails because a file is missing or odd: there is always an answer, and a reason that says where it came from.
"""

from __future__ import annotations

import functools
import os
import platform
import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from edgeinfer.core import env
from edgeinfer.core.errors import InvalidRequestError

MAXIMUM_THREADS = 256  # the worker pool has places for so many
_ROOT = Path("/")
_CPUS = "sys/devices/system/cpu"
# A core counts as big from these shares of the largest one on. Capacities differ by a factor of two and more between the kinds of a board (RK3588:
# 397 to 1024), while equal cores may be binned to different frequencies (5.2 and 5.7 GHz on one desktop part; its small cores: 4.6).
_BIG_CAPACITY = 0.6
_BIG_FREQUENCY = 0.85


@dataclass(frozen=True)
class Limit:
    """One thing that bounds a resource: `amount` (cores or bytes) and what it is, for people."""

    amount: int
    reason: str


@dataclass(frozen=True)
class UsableCores:
    """How many worker threads make sense. `cpus`: a processor number for each, to pin workers to; empty if they are more than the processors. `limits`:
    all that was weighed."""

    count: int
    reason: str
    cpus: tuple[int, ...]
    limits: tuple[Limit, ...]


@dataclass(frozen=True)
class AvailableMemory:
    """Bytes that a model may still take before the machine, the container or a limit of the process gets in the way."""

    size: int
    reason: str
    limits: tuple[Limit, ...]


@dataclass(frozen=True)
class Cache:
    """One cache as seen from the first processor: `kind` is "Data", "Instruction" or "Unified", `shared_by` counts processors."""

    level: int
    kind: str
    size: int
    shared_by: int


@dataclass(frozen=True)
class ResidentMemory:
    """Bytes of this process in RAM: anonymous, file-backed (mapped weights, shared with the page cache), shared memory, and the peak of their sum."""

    anonymous: int
    file: int
    shared: int
    peak: int

    @property
    def total(self) -> int:
        return self.anonymous + self.file + self.shared


def _read(path: Path) -> str | None:
    try:
        return path.read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return None


def _read_integer(path: Path) -> int | None:
    text = _read(path)
    return int(text) if text is not None and re.fullmatch(r"-?[0-9]+", text) else None


def _cpu_list(text: str | None) -> frozenset[int]:
    """The processors of a list as the kernel writes it: "0-3,8,10-11"."""
    found: set[int] = set()
    for part in (text or "").split(","):
        ends = re.fullmatch(r"\s*([0-9]+)(?:-([0-9]+))?\s*", part)
        if ends:
            found.update(range(int(ends[1]), int(ends[2] or ends[1]) + 1))
    return frozenset(found)


def _affinity() -> frozenset[int]:
    try:
        return frozenset(os.sched_getaffinity(0))
    except (AttributeError, OSError):
        return frozenset(range(os.cpu_count() or 1))


def _without_siblings(root: Path, cpus: Collection[int]) -> tuple[list[int], bool]:
    """The first processor of each physical core, and whether the kernel says which ones share a core."""
    seen: set[int] = set()
    firsts: list[int] = []
    known = False
    for cpu in sorted(cpus):
        folder = root / _CPUS / f"cpu{cpu}" / "topology"
        siblings = _cpu_list(_read(folder / "core_cpus_list") or _read(folder / "thread_siblings_list"))
        known |= bool(siblings)
        if cpu not in seen:
            firsts.append(cpu)
        seen |= siblings | {cpu}
    return firsts, known


def _big_cores(root: Path, cpus: list[int]) -> list[int]:
    """Those of the cores that are of the fast kind. All of them where the kernel knows no difference."""
    performance = _cpu_list(_read(root / "sys/devices/cpu_core/cpus"))  # hybrid x86 parts list both kinds here
    if performance:
        return [cpu for cpu in cpus if cpu in performance] or cpus
    for file, share in (("cpu_capacity", _BIG_CAPACITY), ("cpufreq/cpuinfo_max_freq", _BIG_FREQUENCY)):
        values = {cpu: _read_integer(root / _CPUS / f"cpu{cpu}" / file) for cpu in cpus}
        known = [value for value in values.values() if value is not None and value > 0]
        if len(known) == len(cpus) and min(known) < share * max(known):
            return [cpu for cpu in cpus if (values[cpu] or 0) >= share * max(known)]
    return cpus


def _cgroup_folders(root: Path, controller: str) -> Iterator[tuple[Path, int]]:
    """(folder, cgroup version) from this process's group up to the top, for every hierarchy in which `controller` may set a limit.

    In a container the path that the kernel reports may not exist under the mount; the mount itself is then the container's own group.
    """
    mount = root / "sys/fs/cgroup"
    for line in (_read(root / "proc/self/cgroup") or "0::/").splitlines():
        parts = line.split(":", 2)
        if len(parts) != 3:
            continue
        _, controllers, path = parts
        if controllers == "":
            tops, version = [mount, mount / "unified"], 2
        elif controller in controllers.split(","):
            tops, version = list(dict.fromkeys((mount / controllers, mount / controller))), 1
        else:
            continue
        names = [name for name in path.split("/") if name not in ("", "..")]
        for top in tops:
            for depth in range(len(names), -1, -1):
                folder = top.joinpath(*names[:depth])
                if folder.is_dir():
                    yield folder, version


def _quota(root: Path) -> float | None:
    """The smallest processor quota on the way from our control group to the top, in processors, or None."""
    quotas = []
    for folder, version in _cgroup_folders(root, "cpu"):
        if version == 2:
            words = (_read(folder / "cpu.max") or "max").split()
            if len(words) == 2 and words[0].isdigit() and words[1].isdigit() and int(words[1]) > 0:
                quotas.append(int(words[0]) / int(words[1]))
        else:
            quota, period = _read_integer(folder / "cpu.cfs_quota_us"), _read_integer(folder / "cpu.cfs_period_us")
            if quota is not None and period is not None and quota > 0 and period > 0:
                quotas.append(quota / period)
    return min(quotas, default=None)


@dataclass(frozen=True)
class _Cores:
    """The processors that this process may run on, those first that a worker should have: big cores, small cores, SMT siblings."""

    processors: tuple[int, ...]
    physical: int | None  # None if the kernel does not say which processors share a core
    big: int


def _cores_in_order(root: Path, affinity: Collection[int] | None) -> _Cores:
    allowed = frozenset(affinity) if affinity is not None else _affinity()
    allowed = allowed or frozenset([0])
    cores, known = _without_siblings(root, allowed)
    big = _big_cores(root, cores)
    small = [cpu for cpu in cores if cpu not in big]
    return _Cores((*big, *small, *sorted(allowed - frozenset(cores))), len(cores) if known else None, len(big))


def usable_cores(root: Path = _ROOT, affinity: Collection[int] | None = None) -> UsableCores:
    """min(affinity, physical cores, big cores, control-group quota), never below 1.

    SMT siblings share the vector units, so a second thread on a core gains nothing; a small core makes all others wait at every barrier; threads
    beyond the quota are stopped by the kernel in the middle of a step. A cpuset is part of the affinity.
    """
    cores = _cores_in_order(root, affinity)
    allowed, physical = len(cores.processors), cores.physical or len(cores.processors)
    limits = [Limit(allowed, f"{allowed} processor{'s' if allowed > 1 else ''} that this process may run on")]
    if cores.physical is not None:
        limits.append(Limit(physical, f"{physical} physical cores of {allowed} processors"))
    if cores.big < physical:
        limits.append(Limit(cores.big, f"{cores.big} big cores of {physical}"))
    quota = _quota(root)
    if quota is not None:
        limits.append(Limit(max(1, int(quota)), f"control-group quota of {quota:g} processor{'' if quota == 1 else 's'}"))
    lowest = min(limits, key=lambda limit: limit.amount)  # of equal ones the first
    return UsableCores(lowest.amount, lowest.reason, cores.processors[: lowest.amount], tuple(limits))


def worker_threads(
    threads: int | None = None, environment: Mapping[str, str] | None = None, root: Path = _ROOT, affinity: Collection[int] | None = None
) -> UsableCores:
    """`usable_cores`, unless the caller or EDGEINFER_THREADS says how many: an explicit number wins, even above what makes sense. Workers beyond that
    go to cores that would be left out: small ones, then SMT siblings; if there are not enough processors for all, none is pinned.

    Raises InvalidRequestError when EDGEINFER_THREADS is no whole number of at least 1, and for more than MAXIMUM_THREADS.
    """
    found = usable_cores(root, affinity)
    for wanted, reason in ((threads, "asked for"), (env.positive_integer("EDGEINFER_THREADS", environment), "EDGEINFER_THREADS")):
        if wanted is not None:
            if wanted > MAXIMUM_THREADS:
                found_as = "threads is" if reason == "asked for" else f"environment variable {reason} is"
                raise InvalidRequestError(f"{found_as} {wanted}; at most {MAXIMUM_THREADS} are possible, and {found.count} make sense here ({found.reason})")
            order = _cores_in_order(root, affinity).processors
            cpus = order[:wanted] if wanted <= len(order) else ()
            return UsableCores(wanted, reason, cpus, (Limit(wanted, reason), *found.limits))
    return found


def _kilobytes(root: Path, file: str) -> dict[str, int]:
    """Lines "Name:  123 kB" of a file as bytes by name."""
    lines = re.findall(r"^([A-Za-z0-9_()]+):\s+([0-9]+) kB$", _read(root / file) or "", re.MULTILINE)
    return {name: int(value) * 1024 for name, value in lines}


def _statistics(path: Path) -> dict[str, int]:
    """Lines "name 123" of a control group's statistics."""
    return {name: int(value) for name, value in re.findall(r"^(\w+) ([0-9]+)$", _read(path) or "", re.MULTILINE)}


def _cgroup_memory(root: Path) -> Iterator[Limit]:
    """What every control group on the way to the top still leaves. Page cache counts as free: the kernel drops it before it refuses memory."""
    for folder, version in _cgroup_folders(root, "memory"):
        files, usage, prefix = ["memory.max", "memory.high"], "memory.current", ""
        if version == 1:
            files, usage, prefix = ["memory.limit_in_bytes"], "memory.usage_in_bytes", "total_"
        found = [limit for limit in (_read_integer(folder / file) for file in files) if limit is not None and limit < 1 << 60]
        if not found:
            continue
        statistics = _statistics(folder / "memory.stat")
        reclaimable = sum(statistics.get(prefix + name, 0) for name in ("inactive_file", "active_file", "slab_reclaimable"))
        used = max(0, (_read_integer(folder / usage) or 0) - reclaimable)
        yield Limit(max(0, min(found) - used), f"control-group limit of {min(found) / 1e6:,.0f} MB, {used / 1e6:,.0f} MB of it in use")


def _process_limits(root: Path) -> Iterator[Limit]:
    """What the limits of this process (ulimit -v, -d) still leave."""
    limits = _read(root / "proc/self/limits") or ""
    status = _kilobytes(root, "proc/self/status")
    for title, option, field in (("Max address space", "ulimit -v", "VmSize"), ("Max data size", "ulimit -d", "VmData")):
        soft = re.search(rf"^{title}\s+([0-9]+)\s", limits, re.MULTILINE)
        if soft:
            left = max(0, int(soft[1]) - status.get(field, 0))
            yield Limit(left, f"process limit ({option}) of {int(soft[1]) / 1e6:,.0f} MB, {status.get(field, 0) / 1e6:,.0f} MB of it in use")


def available_memory(root: Path = _ROOT) -> AvailableMemory:
    """min(MemAvailable, what the control groups leave, what the limits of this process leave)."""
    memory = _kilobytes(root, "proc/meminfo")
    if "MemAvailable" in memory:
        limits = [Limit(memory["MemAvailable"], "MemAvailable of this machine")]
    else:
        limits = [Limit(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"), "physical memory of this machine")]
    limits += [*_cgroup_memory(root), *_process_limits(root)]
    lowest = min(limits, key=lambda limit: limit.amount)
    return AvailableMemory(lowest.amount, lowest.reason, tuple(limits))


def total_memory(root: Path = _ROOT) -> int:
    """Bytes of RAM that the kernel manages."""
    return _kilobytes(root, "proc/meminfo").get("MemTotal") or os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def resident_memory(root: Path = _ROOT) -> ResidentMemory:
    """What this process holds in RAM now."""
    status = _kilobytes(root, "proc/self/status")
    return ResidentMemory(status.get("RssAnon", 0), status.get("RssFile", 0), status.get("RssShmem", 0), status.get("VmHWM", 0))


def page_size() -> int:
    """Bytes of a page of virtual memory."""
    return os.sysconf("SC_PAGE_SIZE")


_AT_HWCAP, _AT_HWCAP2 = 16, 26
_HWCAP_ASIMDDP = 1 << 20
_HWCAP2_I8MM = 1 << 13


def auxiliary_value(kind: int) -> int:
    """An entry of the auxiliary vector that the kernel hands to every process (getauxval), 0 where there is none."""
    import ctypes

    try:
        getauxval = ctypes.CDLL(None).getauxval
    except (OSError, AttributeError):
        return 0
    getauxval.restype = ctypes.c_ulong
    getauxval.argtypes = [ctypes.c_ulong]
    return int(getauxval(kind))


_ARCH_PRCTL = 158
_ARCH_REQ_XCOMP_PERM = 0x1023
_XFEATURE_XTILEDATA = 18


@functools.cache
def _matrix_registers_problem() -> str | None:
    """Linux gives the registers of AMX to those who ask: this asks, for all threads of the process and the children that it forks. Older systems, and those
    that only look like Linux, do not know the question. None if they are given, else why not."""
    import ctypes

    try:
        system_call = ctypes.CDLL(None, use_errno=True).syscall
    except (OSError, AttributeError) as error:
        return f"the C library has no way to ask for them: {error}"
    system_call.restype = ctypes.c_long
    if system_call(*(ctypes.c_long(value) for value in (_ARCH_PRCTL, _ARCH_REQ_XCOMP_PERM, _XFEATURE_XTILEDATA))) == 0:
        return None
    return f"the operating system refuses them: {os.strerror(ctypes.get_errno())}"


def _common_flags(root: Path) -> frozenset[str]:
    """Flags that every x86-64 processor has."""
    flags = [set(line.split()) for line in re.findall(r"^flags\s*:(.*)$", _read(root / "proc/cpuinfo") or "", re.MULTILINE)]
    return frozenset(set.intersection(*flags)) if flags else frozenset()


def refused_matrix_registers(root: Path = _ROOT) -> str | None:
    """Why this process may not use the registers of AMX, though the processors have them; None if it may, or if there are none. Asks for them, where `root` is
    this machine's."""
    if root != _ROOT or "amx_tile" not in _common_flags(root):
        return None
    return _matrix_registers_problem()


def instruction_sets(root: Path = _ROOT, machine: str | None = None, hwcap: tuple[int, int] | None = None) -> frozenset[str]:
    """What every processor of this machine can execute; empty for machines other than x86-64 and arm64.

    On x86-64 all flags of /proc/cpuinfo ("avx2", "avx512_vnni" ...), without those of AMX where this process may not use its registers. On arm64 "asimd",
    "asimddp" (dot products) and "i8mm" from the auxiliary vector (`hwcap` is AT_HWCAP, AT_HWCAP2): neither the core's name nor what LLVM detects says whether
    it has the last two.
    """
    machine = (machine or platform.machine()).lower()
    if machine in ("x86_64", "amd64"):
        refused = refused_matrix_registers(root) is not None
        return frozenset(flag for flag in _common_flags(root) if not (refused and flag.startswith("amx_")))
    if machine in ("aarch64", "arm64"):
        first, second = hwcap or (auxiliary_value(_AT_HWCAP), auxiliary_value(_AT_HWCAP2))
        return frozenset({"asimd"} | ({"asimddp"} if first & _HWCAP_ASIMDDP else set()) | ({"i8mm"} if second & _HWCAP2_I8MM else set()))
    return frozenset()


def processor_name(root: Path = _ROOT) -> str:
    """The processor's name, as far as the kernel knows it."""
    text = _read(root / "proc/cpuinfo") or ""
    for field in ("model name", "Model", "CPU part"):
        found = re.search(rf"^{field}\s*: *(.+)$", text, re.MULTILINE)
        if found:
            return found[1].strip()
    return platform.machine()


def caches(root: Path = _ROOT) -> tuple[Cache, ...]:
    """The caches of the first processor, smallest first. Empty where the kernel does not say."""
    found = []
    for folder in sorted((root / _CPUS / "cpu0" / "cache").glob("index*")):
        level, size = _read_integer(folder / "level"), re.fullmatch(r"([0-9]+)([KMG]?)", _read(folder / "size") or "")
        if level is not None and size:
            scale = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30}[size[2]]
            shared = _cpu_list(_read(folder / "shared_cpu_list"))
            found.append(Cache(level, _read(folder / "type") or "Unified", int(size[1]) * scale, max(1, len(shared))))
    return tuple(sorted(found, key=lambda cache: (cache.level, cache.kind)))
