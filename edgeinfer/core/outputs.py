"""Whether a file that is to be written at the end of long work can be written: asked before the work starts. The command line and exporters call it."""

from __future__ import annotations

import os
import stat
import tempfile
from pathlib import Path

from edgeinfer.core.errors import InvalidRequestError
from edgeinfer.core.printable import printable_path


def require_writable_file(path: Path, option: str) -> None:
    """Raises InvalidRequestError for a file that cannot be opened for writing. What it holds is left alone, and one that is not there is not made.

    `option` is what the user named it by. A pipe or a device is taken as it is: opening it would be noticed at its other end.
    """
    try:
        target = Path(os.path.realpath(path))
        made = not target.exists()
        if made or target.is_dir() or stat.S_ISREG(target.stat().st_mode):
            with open(target, "ab"):
                pass
        if made:
            target.unlink()
    except (OSError, ValueError) as error:
        raise _unwritable(path, option, error, "file") from error


def require_writable_folder(path: Path, option: str) -> None:
    """Makes the folder if need be. Raises InvalidRequestError where no file can be made in it."""
    try:
        path.mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=path).close()
    except (OSError, ValueError) as error:
        raise _unwritable(path, option, error, "folder") from error


def _unwritable(path: Path, option: str, error: Exception, kind: str) -> InvalidRequestError:
    reason = os.strerror(error.errno) if isinstance(error, OSError) and error.errno is not None else str(error)
    return InvalidRequestError(f"{option} cannot be written to {printable_path(path)}: {reason}; name another {kind}")
