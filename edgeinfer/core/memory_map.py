"""The operating-system calls of memory-mapped files: map one read-only, and give its pages back. Only the file reader calls this module."""

from __future__ import annotations

import errno
import mmap
import os
import stat

from edgeinfer.core.errors import MemoryPlanError, ModelFileError, ModelNotFoundError
from edgeinfer.core.printable import printable_path


def map_file(path: str | os.PathLike[str]) -> mmap.mmap | None:
    """Map a regular file read-only; None if it is empty (an empty mapping does not exist).

    A ModelNotFoundError if there is no such file, a ModelFileError if it is a directory, no regular file or unreadable, a MemoryPlanError if the
    address space does not hold it.
    """
    shown = printable_path(path)
    try:
        if stat.S_ISDIR(os.stat(path).st_mode):
            raise ModelFileError(f"{shown} is a directory; name the GGUF file inside it")
        # Without O_NONBLOCK, opening a pipe would wait for its writer.
        descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0) | getattr(os, "O_CLOEXEC", 0))
        try:
            status = os.fstat(descriptor)
            if not stat.S_ISREG(status.st_mode):
                raise ModelFileError(f"{shown} is no regular file; a model has to be a file that can be mapped into memory")
            return mmap.mmap(descriptor, status.st_size, access=mmap.ACCESS_READ) if status.st_size else None
        finally:
            os.close(descriptor)
    except (FileNotFoundError, NotADirectoryError):
        raise ModelNotFoundError(f"there is no file {shown}") from None
    except PermissionError:
        raise ModelFileError(f"{shown} cannot be read: permission denied") from None
    except OSError as error:
        if error.errno == errno.ENOMEM:
            raise MemoryPlanError(
                f"{shown} cannot be mapped: the address space that is left to this process is too small for it; raise the limit (ulimit -v) "
                "or choose a smaller model"
            ) from None
        raise ModelFileError(f"{shown} cannot be opened: {error.strerror or error}") from None
    except ValueError as error:  # a NUL in the path
        raise ModelNotFoundError(f"{shown} is not a path: {error}") from None


def release_pages(mapping: mmap.mmap, offset: int, length: int) -> int:
    """Let the whole pages inside a byte range leave memory (reading them again reads the file again); the number of bytes given back."""
    page = mmap.PAGESIZE
    start = -(-offset // page) * page
    end = (offset + length) // page * page
    if end <= start or not hasattr(mmap, "MADV_DONTNEED"):
        return 0
    mapping.madvise(mmap.MADV_DONTNEED, start, end - start)
    return end - start
