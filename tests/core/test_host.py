"""What the machine offers, from trees shaped as kernels show them."""

from __future__ import annotations

import os
import platform
from pathlib import Path

import pytest

from edgeinfer.core import host
from edgeinfer.core.errors import InvalidRequestError


def write(root: Path, files: dict[str, str | int]) -> Path:
    for name, content in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{content}\n")
    return root


def cpu(root: Path, number: int, siblings: str, **more: int) -> None:
    folder = f"sys/devices/system/cpu/cpu{number}"
    write(root, {f"{folder}/topology/thread_siblings_list": siblings})
    for name, value in more.items():
        write(root, {f"{folder}/{ {'capacity': 'cpu_capacity', 'frequency': 'cpufreq/cpuinfo_max_freq'}[name] }": value})


def eight_and_twelve(root: Path) -> int:
    """Arrow Lake: 8 performance and 12 efficiency cores, no SMT; two performance cores are binned higher."""
    for number in range(20):
        cpu(root, number, str(number), frequency=5_500_000 if number in (2, 3) else 5_400_000 if number < 8 else 4_600_000)
    write(root, {"sys/devices/cpu_core/cpus": "0-7", "sys/devices/cpu_atom/cpus": "8-19"})
    return 20


def eight_and_twelve_by_frequency(root: Path) -> int:
    """The same without the kernel's lists of kinds."""
    for number in range(20):
        cpu(root, number, str(number), frequency=5_500_000 if number in (2, 3) else 5_400_000 if number < 8 else 4_600_000)
    return 20


def six_with_siblings_and_eight(root: Path) -> int:
    """6 performance cores with SMT, 8 efficiency cores."""
    for number in range(12):
        cpu(root, number, f"{number // 2 * 2}-{number // 2 * 2 + 1}", frequency=5_100_000)
    for number in range(12, 20):
        cpu(root, number, str(number), frequency=3_900_000)
    return 20


def rk3588(root: Path) -> int:
    """4 small A55 (first) and 4 big A76; the two big clusters differ a little."""
    for number in range(8):
        cpu(root, number, str(number), capacity=397 if number < 4 else 1024 if number < 6 else 1008, frequency=1_800_000 if number < 4 else 2_400_000)
    return 8


def rk3588_by_frequency(root: Path) -> int:
    """The same without capacities."""
    for number in range(8):
        cpu(root, number, str(number), frequency=1_800_000 if number < 4 else 2_400_000 if number < 6 else 2_256_000)
    return 8


def two_sockets(root: Path) -> int:
    """2 sockets of 16 cores with SMT; siblings are numbered 32 apart."""
    for number in range(64):
        cpu(root, number, f"{number % 32},{number % 32 + 32}", frequency=3_500_000)
    return 64


def single(root: Path) -> int:
    cpu(root, 0, "0")
    return 1


def nothing(root: Path) -> int:
    """A sandbox without /sys: what the operating system's call says is all there is."""
    return 5


@pytest.mark.parametrize(
    ("machine", "count", "cpus", "reason"),
    [
        (eight_and_twelve, 8, range(8), "8 big cores of 20"),
        (eight_and_twelve_by_frequency, 8, range(8), "8 big cores of 20"),
        (six_with_siblings_and_eight, 6, range(0, 12, 2), "6 big cores of 14"),
        (rk3588, 4, range(4, 8), "4 big cores of 8"),
        (rk3588_by_frequency, 4, range(4, 8), "4 big cores of 8"),
        (two_sockets, 32, range(32), "32 physical cores of 64 processors"),
        (single, 1, range(1), "1 processor that this process may run on"),
        (nothing, 5, range(5), "5 processors that this process may run on"),
    ],
)
def test_cores_of_machines(tmp_path: Path, machine, count: int, cpus: range, reason: str) -> None:  # type: ignore[no-untyped-def]
    processors = machine(tmp_path)
    found = host.usable_cores(tmp_path, range(processors))
    assert (found.count, found.cpus, found.reason) == (count, tuple(cpus), reason)


def test_affinity_counts_cores_not_processors(tmp_path: Path) -> None:
    two_sockets(tmp_path)
    assert host.usable_cores(tmp_path, {0, 32}).count == 1
    found = host.usable_cores(tmp_path, {33, 2, 1})
    assert (found.count, found.cpus) == (2, (1, 2))


def test_affinity_to_small_cores_uses_them(tmp_path: Path) -> None:
    six_with_siblings_and_eight(tmp_path)
    assert host.usable_cores(tmp_path, range(12, 16)).cpus == (12, 13, 14, 15)
    eight = tmp_path / "eight"
    eight_and_twelve(eight)
    assert host.usable_cores(eight, range(10, 14)).cpus == (10, 11, 12, 13)


@pytest.mark.parametrize("affinity", [[], None])
def test_never_zero(tmp_path: Path, affinity: list[int] | None) -> None:
    assert host.usable_cores(tmp_path, affinity).count >= 1


def test_garbage_in_the_tree_is_survived(tmp_path: Path) -> None:
    write(
        tmp_path,
        {
            "sys/devices/system/cpu/cpu0/topology/thread_siblings_list": "what-ever,,",
            "sys/devices/system/cpu/cpu0/cpu_capacity": "many",
            "proc/self/cgroup": "no colons\n0::/a",
            "sys/fs/cgroup/a/cpu.max": "200000",
            "sys/fs/cgroup/cpu.max": "10 0",
        },
    )
    assert host.usable_cores(tmp_path, range(2)).count == 2


@pytest.mark.parametrize(("quota", "count"), [("200000 100000", 2), ("50000 100000", 1), ("765000 100000", 7), ("max 100000", 8), ("1 100000", 1)])
def test_quota_of_cgroup_2(tmp_path: Path, quota: str, count: int) -> None:
    write(tmp_path, {"proc/self/cgroup": "0::/", "sys/fs/cgroup/cpu.max": quota})
    found = host.usable_cores(tmp_path, range(8))
    assert (found.count, len(found.cpus)) == (count, count)
    assert ("quota" in found.reason) == (count < 8)


@pytest.mark.parametrize("tightest", ["sys/fs/cgroup/a/cpu.max", "sys/fs/cgroup/a/b/cpu.max", "sys/fs/cgroup/a/b/c/cpu.max"])
def test_nested_quotas_take_the_smallest(tmp_path: Path, tightest: str) -> None:
    files = {f"sys/fs/cgroup/{group}cpu.max": "600000 100000" for group in ("a/", "a/b/", "a/b/c/")}
    write(tmp_path, {"proc/self/cgroup": "0::/a/b/c", **files, tightest: "300000 100000"})
    assert host.usable_cores(tmp_path, range(8)).count == 3


def test_quota_of_cgroup_1(tmp_path: Path) -> None:
    write(
        tmp_path,
        {
            "proc/self/cgroup": "5:memory:/x\n4:cpu,cpuacct:/docker/abc\n0::/",
            "sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us": 250_000,  # the path above does not exist in the container: the mount is its group
            "sys/fs/cgroup/cpu,cpuacct/cpu.cfs_period_us": 100_000,
        },
    )
    found = host.usable_cores(tmp_path, range(8))
    assert (found.count, found.reason) == (2, "control-group quota of 2.5 processors")
    write(tmp_path, {"sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us": -1})
    assert host.usable_cores(tmp_path, range(8)).count == 8


def test_quota_of_cgroup_1_with_a_folder_per_controller(tmp_path: Path) -> None:
    write(
        tmp_path,
        {
            "proc/self/cgroup": "1:cpu:/jobs/one",
            "sys/fs/cgroup/cpu/jobs/one/cpu.cfs_quota_us": -1,
            "sys/fs/cgroup/cpu/jobs/one/cpu.cfs_period_us": 100_000,
            "sys/fs/cgroup/cpu/jobs/cpu.cfs_quota_us": 400_000,
            "sys/fs/cgroup/cpu/jobs/cpu.cfs_period_us": 100_000,
        },
    )
    assert host.usable_cores(tmp_path, range(8)).count == 4


def test_an_explicit_number_of_threads_wins() -> None:
    assert (host.worker_threads(97, {}).count, host.worker_threads(97, {}).reason) == (97, "asked for")
    assert host.worker_threads(3, {"EDGEINFER_THREADS": "5"}).count == 3
    assert host.worker_threads(None, {"EDGEINFER_THREADS": "5"}).reason == "EDGEINFER_THREADS"
    assert host.worker_threads(None, {}) == host.usable_cores()
    with pytest.raises(InvalidRequestError, match="EDGEINFER_THREADS"):
        host.worker_threads(None, {"EDGEINFER_THREADS": "all"})


@pytest.mark.parametrize(
    ("machine", "threads", "cpus"),
    [
        (eight_and_twelve, 4, [0, 1, 2, 3]),
        (eight_and_twelve, 10, [*range(8), 8, 9]),
        (six_with_siblings_and_eight, 6, [0, 2, 4, 6, 8, 10]),
        (six_with_siblings_and_eight, 8, [0, 2, 4, 6, 8, 10, 12, 13]),
        (six_with_siblings_and_eight, 16, [0, 2, 4, 6, 8, 10, *range(12, 20), 1, 3]),
        (rk3588, 5, [4, 5, 6, 7, 0]),
        (two_sockets, 34, [*range(32), 32, 33]),
        (rk3588, 9, []),
        (nothing, 6, []),
    ],
)
def test_threads_that_are_asked_for_get_the_best_cores(tmp_path: Path, machine, threads: int, cpus: list[int]) -> None:  # type: ignore[no-untyped-def]
    processors = machine(tmp_path)
    found = host.worker_threads(threads, {}, tmp_path, range(processors))
    assert (found.count, list(found.cpus)) == (threads, cpus)


def test_threads_beyond_a_quota_are_pinned_as_well(tmp_path: Path) -> None:
    write(tmp_path, {"proc/self/cgroup": "0::/", "sys/fs/cgroup/cpu.max": "100000 100000"})
    assert host.worker_threads(None, {}, tmp_path, range(4)).cpus == (0,)
    assert host.worker_threads(2, {}, tmp_path, range(4)).cpus == (0, 1)


def test_more_threads_than_the_pool_has_places_are_refused() -> None:
    from kernels_numba.executor.workers import MAXIMUM_WORKERS

    assert host.MAXIMUM_THREADS == MAXIMUM_WORKERS
    assert host.worker_threads(MAXIMUM_WORKERS, {}).count == MAXIMUM_WORKERS
    with pytest.raises(InvalidRequestError, match="threads is 257; at most 256 are possible"):
        host.worker_threads(257, {})
    with pytest.raises(InvalidRequestError, match="EDGEINFER_THREADS is 99999; at most 256"):
        host.worker_threads(None, {"EDGEINFER_THREADS": "99999"})


MEMINFO = "MemTotal:       16000000 kB\nMemFree:          100000 kB\nMemAvailable:    8000000 kB"
MB = 1_000_000


def test_available_memory_of_the_machine(tmp_path: Path) -> None:
    write(tmp_path, {"proc/meminfo": MEMINFO})
    found = host.available_memory(tmp_path)
    assert (found.size, found.reason) == (8_000_000 * 1024, "MemAvailable of this machine")
    assert host.total_memory(tmp_path) == 16_000_000 * 1024


def test_page_cache_in_a_container_is_not_counted_as_used(tmp_path: Path) -> None:
    statistics = f"anon {30 * MB}\nfile {340 * MB}\ninactive_file {300 * MB}\nactive_file {40 * MB}\nslab_reclaimable {5 * MB}"
    write(
        tmp_path,
        {
            "proc/meminfo": MEMINFO,
            "proc/self/cgroup": "0::/",
            "sys/fs/cgroup/memory.max": 400 * MB,
            "sys/fs/cgroup/memory.high": "max",
            "sys/fs/cgroup/memory.current": 395 * MB,
            "sys/fs/cgroup/memory.stat": statistics,
        },
    )
    found = host.available_memory(tmp_path)
    assert found.size == 350 * MB
    assert found.reason == "control-group limit of 400 MB, 50 MB of it in use"
    write(tmp_path, {"sys/fs/cgroup/memory.high": 200 * MB})
    assert host.available_memory(tmp_path).size == 150 * MB


def test_nested_memory_limits_take_what_leaves_least(tmp_path: Path) -> None:
    write(
        tmp_path,
        {
            "proc/meminfo": MEMINFO,
            "proc/self/cgroup": "0::/slice/job",
            "sys/fs/cgroup/slice/memory.max": 1000 * MB,
            "sys/fs/cgroup/slice/memory.current": 900 * MB,
            "sys/fs/cgroup/slice/job/memory.max": 500 * MB,
            "sys/fs/cgroup/slice/job/memory.current": 100 * MB,
        },
    )
    assert host.available_memory(tmp_path).size == 100 * MB


def test_memory_limit_of_cgroup_1(tmp_path: Path) -> None:
    write(
        tmp_path,
        {
            "proc/meminfo": MEMINFO,
            "proc/self/cgroup": "4:memory:/job",
            "sys/fs/cgroup/memory/memory.limit_in_bytes": 9223372036854771712,
            "sys/fs/cgroup/memory/job/memory.limit_in_bytes": 600 * MB,
            "sys/fs/cgroup/memory/job/memory.usage_in_bytes": 500 * MB,
            "sys/fs/cgroup/memory/job/memory.stat": f"inactive_file 1\ntotal_inactive_file {350 * MB}\ntotal_active_file {50 * MB}",
        },
    )
    found = host.available_memory(tmp_path)
    assert found.size == 500 * MB
    assert [limit.reason for limit in found.limits if "control-group" in limit.reason] == ["control-group limit of 600 MB, 100 MB of it in use"]


def test_limits_of_the_process(tmp_path: Path) -> None:
    write(
        tmp_path,
        {
            "proc/meminfo": MEMINFO,
            "proc/self/status": "VmSize:\t  500000 kB\nVmData:\t  100000 kB",
            "proc/self/limits": "Limit                     Soft Limit           Hard Limit           Units\n"
            "Max data size             unlimited            unlimited            bytes\n"
            "Max address space         1024000000           unlimited            bytes",
        },
    )
    found = host.available_memory(tmp_path)
    assert found.size == 1_024_000_000 - 512_000_000
    assert "ulimit -v" in found.reason
    write(tmp_path, {"proc/self/limits": "Max data size             204800000            unlimited            bytes"})
    assert host.available_memory(tmp_path).size == 204_800_000 - 102_400_000


def test_a_limit_below_what_is_used_leaves_nothing(tmp_path: Path) -> None:
    write(tmp_path, {"proc/self/cgroup": "0::/", "sys/fs/cgroup/memory.max": 5, "sys/fs/cgroup/memory.current": 10})
    assert host.available_memory(tmp_path).size == 0


def test_no_proc_falls_back_to_physical_memory(tmp_path: Path) -> None:
    assert host.available_memory(tmp_path).size == os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def test_x86_instruction_sets_are_those_of_every_processor(tmp_path: Path) -> None:
    processors = "processor : 0\nflags\t\t: fpu avx2 fma f16c avx512f avx512_vnni\n\nprocessor : 1\nflags\t\t: fpu fma avx2 avx_vnni"
    write(tmp_path, {"proc/cpuinfo": processors})
    assert host.instruction_sets(tmp_path, "x86_64") == {"fpu", "avx2", "fma"}
    assert host.instruction_sets(tmp_path / "none", "x86_64") == frozenset()


def test_registers_of_matrices_count_where_the_system_gives_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path, {"proc/cpuinfo": "flags\t\t: avx2 amx_tile amx_int8 amx_bf16"})
    assert host.refused_matrix_registers(tmp_path) is None  # a recorded tree has nobody to ask
    monkeypatch.setattr(host, "_ROOT", tmp_path)
    monkeypatch.setattr(host, "_matrix_registers_problem", lambda: "the operating system refuses them: Invalid argument")
    assert host.instruction_sets(tmp_path, "x86_64") == {"avx2"}
    assert host.refused_matrix_registers(tmp_path) == "the operating system refuses them: Invalid argument"
    monkeypatch.setattr(host, "_matrix_registers_problem", lambda: None)
    assert host.instruction_sets(tmp_path, "x86_64") == {"avx2", "amx_tile", "amx_int8", "amx_bf16"}
    write(tmp_path, {"proc/cpuinfo": "flags\t\t: avx2"})
    monkeypatch.setattr(host, "_matrix_registers_problem", lambda: pytest.fail("asked for registers that the processor does not have"))
    assert host.instruction_sets(tmp_path, "x86_64") == {"avx2"}


@pytest.mark.skipif(platform.machine() != "x86_64", reason="the registers are those of x86-64")
def test_a_system_that_does_not_know_the_question_refuses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host, "_ARCH_REQ_XCOMP_PERM", 0x10FF)  # no such request
    assert "refuses them: Invalid argument" in (host._matrix_registers_problem.__wrapped__() or "")


@pytest.mark.parametrize(
    ("hwcap", "expected"),
    [((0, 0), {"asimd"}), ((1 << 20, 0), {"asimd", "asimddp"}), ((1 << 20, 1 << 13), {"asimd", "asimddp", "i8mm"}), ((1 << 13, 1 << 20), {"asimd"})],
)
def test_arm_instruction_sets_come_from_the_auxiliary_vector(tmp_path: Path, hwcap: tuple[int, int], expected: set[str]) -> None:
    assert host.instruction_sets(tmp_path, "aarch64", hwcap) == expected


def test_other_machines_have_no_known_instruction_sets(tmp_path: Path) -> None:
    assert host.instruction_sets(tmp_path, "riscv64") == frozenset()


def test_the_auxiliary_vector_is_readable() -> None:
    assert host.auxiliary_value(6) == host.page_size()  # AT_PAGESZ


def test_caches(tmp_path: Path) -> None:
    shown = [(1, "Data", "48K", "0-1"), (1, "Instruction", "32K", "0-1"), (2, "Unified", "2048K", "0"), (3, "Unified", "36M", "0-19")]
    for index, (level, kind, size, shared) in enumerate(shown):
        folder = f"sys/devices/system/cpu/cpu0/cache/index{index}"
        write(tmp_path, {f"{folder}/level": level, f"{folder}/type": kind, f"{folder}/size": size, f"{folder}/shared_cpu_list": shared})
    assert host.caches(tmp_path) == (
        host.Cache(1, "Data", 48 << 10, 2),
        host.Cache(1, "Instruction", 32 << 10, 2),
        host.Cache(2, "Unified", 2 << 20, 1),
        host.Cache(3, "Unified", 36 << 20, 20),
    )
    assert host.caches(tmp_path / "none") == ()


def test_resident_memory_of_this_process() -> None:
    before = host.resident_memory()
    held = bytearray(64 << 20)
    held[:: host.page_size()] = b"x" * len(held[:: host.page_size()])
    after = host.resident_memory()
    assert 60 << 20 < after.anonymous - before.anonymous < 72 << 20
    assert after.peak >= after.total > 0


def test_processor_name(tmp_path: Path) -> None:
    assert host.processor_name(write(tmp_path, {"proc/cpuinfo": "model name\t: Some CPU @ 2 GHz"})) == "Some CPU @ 2 GHz"
    assert host.processor_name(write(tmp_path, {"proc/cpuinfo": "CPU part\t: 0xd0b"})) == "0xd0b"
    assert host.processor_name(tmp_path / "none") != ""


def test_this_machine_answers() -> None:
    assert host.usable_cores().count <= len(os.sched_getaffinity(0))
    assert 0 < host.available_memory().size <= host.total_memory()
