"""Which folders and files may hold what this process runs or computes with: native code and packed weights. Free of Numba; the store and backends call it."""

from __future__ import annotations

import os
import stat
from pathlib import Path

PACKAGE = Path(__file__).resolve().parent.parent


def not_ours(information: os.stat_result, path: Path) -> str | None:
    """None for what belongs to us or to root and nobody else can write to, otherwise what is wrong. What lies in the package must be no more open than the
    package's own modules, which run as well."""
    allowed, owners = 0, {os.getuid(), 0}
    if path.is_relative_to(PACKAGE):
        package = PACKAGE.stat()
        allowed, owners = package.st_mode, owners | {package.st_uid}
    if information.st_uid not in owners or information.st_mode & (stat.S_IWGRP | stat.S_IWOTH) & ~allowed:
        return f"it must be a {'folder' if stat.S_ISDIR(information.st_mode) else 'file'} of yours that nobody else can write to"
    return None


def make_own(directory: Path, *inner: str) -> str | None:
    """Makes the folder and the ones inside of it, if need be. None when they exist, are ours and are writable by nobody else (read-only folders of ours
    are fine), otherwise what is in the way.
    """
    folders = [directory.joinpath(*inner[:depth]) for depth in range(len(inner) + 1)]
    for folder in folders:
        try:
            folder.mkdir(mode=0o755, parents=True, exist_ok=True)  # others may read: root fills a cache when an image is built, a service uses it
            obstacle = not_ours(folder.stat(), folder)
        except OSError as error:
            return error.strerror or str(error)
        if obstacle is not None:
            return obstacle
    return None
