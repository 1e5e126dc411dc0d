"""The record of a benchmark: on which machine and at which commit it ran, and the file that it is kept in. The benchmark and the command line call it."""

from __future__ import annotations

import json
import os
import platform
import subprocess
from pathlib import Path
from typing import Any

from edgeinfer.benchmark.results import BenchmarkResult
from edgeinfer.core import host
from edgeinfer.core.errors import StorageError


def machine() -> dict[str, Any]:
    """Processor, usable cores, caches, memory, system and load of this machine."""
    cores = host.usable_cores()
    return {
        "processor": host.processor_name(),
        "usable_cores": cores.count,
        "usable_cores_reason": cores.reason,
        "last_level_cache_bytes": max((cache.size for cache in host.caches()), default=None),
        "memory_bytes": host.total_memory(),
        "system": platform.platform(),
        "python": platform.python_version(),
        "load_average": round(os.getloadavg()[0], 2),
    }


def commit(folder: Path) -> str | None:
    """The commit of the checkout that holds `folder`, with `+` for uncommitted changes; None outside a checkout."""
    try:
        run = subprocess.run(["git", "-C", str(folder), "rev-parse", "HEAD"], capture_output=True, text=True, check=True, timeout=10)
        changed = subprocess.run(["git", "-C", str(folder), "status", "--porcelain", "-uno"], capture_output=True, text=True, check=True, timeout=10)
    except (OSError, subprocess.SubprocessError):
        return None
    return run.stdout.strip() + ("+" if changed.stdout.strip() else "")


def write_result(result: BenchmarkResult, folder: Path) -> Path:
    """Writes the result as DATE-MODEL.json into `folder`, which is made if need be; a second run of a day replaces the first. Raises StorageError."""
    path = folder / f"{result.date[:10]}-{result.model}.json"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(result.to_json(), indent=2) + "\n", encoding="utf-8")
    except OSError as error:
        raise StorageError(f"cannot write {path}: {error.strerror}; choose another folder with --write") from error
    return path
