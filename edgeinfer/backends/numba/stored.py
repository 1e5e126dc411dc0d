"""Packed weights on disk: a file per model, mapped in place of packing. `edgeinfer compile MODEL --weights` makes one, `find` takes it if it is the right one.

The file is the weights' memory as it is, behind one page that says what it belongs to: the model file (its size, time of change, tensor table and samples of
its tensors) and the layout (digest of the sources that pack). It does not depend on the instruction set. Pages of it belong to the file: the system
may take them back, and shares them between processes.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import mmap
import os
import threading
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgeinfer.core.errors import StorageError
from edgeinfer.core.home import packed_weights_path
from edgeinfer.core.printable import printable_path
from edgeinfer.gguf.reader import GGUFFile
from kernels_numba.executor.sources import sources
from kernels_numba.executor.trust import make_own, not_ours

HEADER_BYTES = 4096
"""Weights begin here in the file, at a page."""

_MAGIC = b"edgeinfer-weights-1\n"
_SAMPLES = 16
_SAMPLE_BYTES = 4096
_CHUNK = 16 << 20


@dataclass(frozen=True)
class StoredWeights:
    """A file of packed weights whose header was checked. `size` counts the bytes of weights, `content` is their SHA-256."""

    path: Path
    size: int
    content: str

    def map(self) -> mmap.mmap:
        """The file, read-only and private; weights begin at `HEADER_BYTES`. Raises OSError."""
        with self.path.open("rb") as file:
            populate = getattr(mmap, "MAP_POPULATE", 0)  # all of it is needed for the first token
            return mmap.mmap(file.fileno(), HEADER_BYTES + self.size, flags=mmap.MAP_PRIVATE | populate, prot=mmap.PROT_READ)

    def is_whole(self) -> bool:
        """Reads all of it and compares the content with its hash."""
        digest = hashlib.sha256()
        with self.path.open("rb") as file:
            file.seek(HEADER_BYTES)
            while piece := file.read(_CHUNK):
                digest.update(piece)
        return digest.hexdigest() == self.content


def stored_path(file: GGUFFile) -> Path:
    """Where the packed weights of a model file are kept, whether they exist or not: a name for people, and the path of the model file in short."""
    place = Path(file.path).resolve()
    return packed_weights_path() / f"{place.stem[:80]}-{hashlib.sha256(os.fsencode(place)).hexdigest()[:12]}.weights"


def identity(file: GGUFFile, layout: Sequence[tuple[str, int]], formats: Sequence[str]) -> str:
    """What packed weights belong to: this content of the model file, this layout (names and offsets), packed by these sources.

    The content of a file that was changed in place, with its size and time of change restored, is not noticed unless a sample lies in the change.
    """
    digest = hashlib.sha256(json.dumps([sources().layout_digest(formats), list(layout)]).encode())
    for path in file.paths:
        status = os.stat(path)
        digest.update(f"{status.st_size} {status.st_mtime_ns}\n".encode())
    tensors = list(file.tensors.values())
    for tensor in tensors:
        digest.update(f"{tensor.name} {tensor.format_name} {tensor.shape} {tensor.shard} {tensor.offset}\n".encode())
    for tensor in tensors[:: max(1, len(tensors) // _SAMPLES)]:
        digest.update(file.tensor_bytes(tensor.name)[:_SAMPLE_BYTES].tobytes())
    return digest.hexdigest()


def find(path: Path, key: Callable[[], str], size: int) -> tuple[StoredWeights | None, str | None]:
    """The weights in the file, if they are those of `key` (asked for when there is a file); otherwise None and, for a file that is there, why not."""
    try:
        with path.open("rb") as file:
            status = os.fstat(file.fileno())
            obstacle = not_ours(status, path) or not_ours(path.parent.stat(), path.parent)
            head = file.read(HEADER_BYTES) if obstacle is None else b""
    except FileNotFoundError:
        return None, None
    except OSError as error:
        return None, error.strerror or str(error)
    if obstacle is not None:
        return None, obstacle
    description = _description(head)
    if description is None or status.st_size != HEADER_BYTES + description["size"]:
        return None, "it is damaged"
    if description["key"] != key() or description["size"] != size:
        return None, "the model file or the layout of weights has changed since"
    return StoredWeights(path, size, description["content"]), None


def _description(head: bytes) -> dict[str, Any] | None:
    """The fields of a header, if it is one: a magic line, the SHA-256 of the next line, and a line of JSON."""
    if not head.startswith(_MAGIC):
        return None
    checked, _, rest = head[len(_MAGIC) :].partition(b"\n")
    line, _, _ = rest.partition(b"\n")
    if hashlib.sha256(line).hexdigest().encode() != checked:
        return None
    description: dict[str, Any] = json.loads(line)
    return description


def write(path: Path, key: str, weights: NDArray[np.uint8]) -> StoredWeights:
    """Writes weights as a file that is whole or not there. Raises StorageError, and leaves nothing behind, when the disk does not take it."""
    obstacle = make_own(path.parent)
    if obstacle is not None:
        raise StorageError(f"packed weights cannot be kept in {printable_path(path.parent)}: {obstacle}; choose another folder with EDGEINFER_HOME")
    temporary = path.with_name(f"{path.name}.{os.getpid()}.{threading.get_ident()}.part")
    content = hashlib.sha256()
    try:
        with temporary.open("wb") as file:
            os.posix_fallocate(file.fileno(), 0, HEADER_BYTES + len(weights))  # a disk that is too small says so before the work
            file.seek(HEADER_BYTES)
            start = 0
            while start < len(weights):  # up to the next multiple of the chunk in the file, so that its pages in memory can be large ones
                piece = weights[start : start + _CHUNK - (HEADER_BYTES + start) % _CHUNK].data
                content.update(piece)
                file.write(piece)
                start += len(piece)
            line = json.dumps({"key": key, "size": len(weights), "content": content.hexdigest()}).encode()
            head = _MAGIC + hashlib.sha256(line).hexdigest().encode() + b"\n" + line + b"\n"
            file.seek(0)
            file.write(head + bytes(HEADER_BYTES - len(head)))
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except OSError as error:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)
        full = error.errno in (errno.ENOSPC, errno.EDQUOT)
        remedy = "make room, or choose another folder with EDGEINFER_HOME" if full else "choose another folder with EDGEINFER_HOME"
        raise StorageError(
            f"{len(weights) / 1e6:,.0f} MB of packed weights could not be written to {printable_path(path)}: {error.strerror or error}; {remedy}"
        ) from error
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    return StoredWeights(path, len(weights), content.hexdigest())


def renew(path: Path, key: str, weights: NDArray[np.uint8], reason: str) -> None:
    """Replaces a file that could not be taken: whoever made it wants it. Says so; a failure is a warning, for the weights are in memory."""
    try:
        write(path, key, weights)
        warnings.warn(f"the packed weights in {printable_path(path)} were made again: {reason}", stacklevel=2)
    except StorageError as error:
        warnings.warn(f"{error} (the file there is not used: {reason})", stacklevel=2)
