"""The folder of temporary files through which weights reach ONNX Runtime. Called by `session`.

The files need names: ONNX Runtime resolves the path of external data and refuses what has none, and what is handed over as memory it copies. A process
that is killed while it loads leaves the folder behind, hundreds of megabytes, so each folder has a file that its process keeps locked. The system drops
the lock with the process, however it ends, and the next load removes every folder whose lock is free.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

PREFIX = "edgeinfer-onnx-"
_LOCK = "in-use"


@contextmanager
def weights_folder() -> Iterator[Path]:
    """A folder for as long as the `with` lasts. Folders of processes that were killed are removed first. Raises OSError where none can be made."""
    _remove_abandoned(Path(tempfile.gettempdir()))
    with tempfile.TemporaryDirectory(prefix=PREFIX) as name:
        folder = Path(name)
        unlocked = folder / "starting"
        with open(unlocked, "wb") as file:
            _locked(file)
            unlocked.rename(folder / _LOCK)  # under this name it is locked from its first moment on
            yield folder


def _remove_abandoned(parent: Path) -> None:
    for folder in parent.glob(f"{PREFIX}*"):
        with suppress(OSError):  # others', or gone in the meantime
            if folder.is_symlink() or folder.stat().st_uid != os.geteuid():
                continue
            with open(folder / _LOCK, "rb") as file:
                if _locked(file):
                    shutil.rmtree(folder)


def _locked(file: BinaryIO) -> bool:
    """Whether this process has the lock of a file now: not where another has it, nor where the system has no locks."""
    try:
        import fcntl

        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except (ImportError, OSError):
        return False
    return True
