"""What a file that should be a GGUF file really is, in words for its owner. Only the reader calls it."""

from __future__ import annotations

import re

MAGIC = b"GGUF"
# magic, version, number of tensors, number of metadata keys
HEADER_BYTES = 24

_PART_OF_A_FILE = re.compile(r"\.(part[-_.]?\d+(of\d+)?|\d{3}|split[-_]?[a-z]{2})$", re.IGNORECASE)
_FETCH_AGAIN = "fetch it again"
_OTHER_FILES = (
    (b"PK\x03\x04", "a zip archive (a PyTorch checkpoint or a package); edgeinfer reads GGUF files"),
    (b"\x1f\x8b", "a gzip archive; unpack it first"),
    (b"\x28\xb5\x2f\xfd", "a zstd archive; unpack it first"),
    (b"BZh", "a bzip2 archive; unpack it first"),
    (b"7z\xbc\xaf\x27\x1c", "a 7z archive; unpack it first"),
    (b"tjgg", "a GGJT file, a format that llama.cpp dropped in 2023; convert the model to GGUF"),
    (b"fmgg", "a GGMF file, a format that llama.cpp dropped in 2023; convert the model to GGUF"),
    (b"lmgg", "a GGML file, a format that llama.cpp dropped in 2023; convert the model to GGUF"),
    (b"\x7fELF", "a program (ELF), no model"),
    (b"%PDF", "a PDF document, no model"),
)


def is_part_of_a_file(name: str) -> bool:
    """Whether a file name says that it is one piece of a file that was cut by bytes (which is not what GGUF calls a split file)."""
    return _PART_OF_A_FILE.search(name) is not None


def part_hint(name: str) -> str:
    """What to add to a message about a file with that name: nothing, or that its pieces have to be joined."""
    return "; by its name it is one part of a larger file: join the parts (cat) in order first" if is_part_of_a_file(name) else ""


def describe_stranger(head: bytes, size: int, name: str) -> str | None:
    """What a file is instead of a GGUF file, with the remedy; None if it starts like one and is long enough for a header.

    head: the first few hundred bytes; size: bytes of the whole file; name: its file name.
    """
    if size == 0:
        return f"is empty (0 bytes); {_FETCH_AGAIN}"
    if head[:4] == MAGIC:
        if size >= HEADER_BYTES:
            return None
        return f"is a stub of {size} bytes (a GGUF header alone has {HEADER_BYTES}): the download was interrupted; {_FETCH_AGAIN}"
    text = head.lstrip(b"\xef\xbb\xbf \t\r\n").lower()
    if text.startswith((b"<!doctype", b"<html", b"<head", b"<?xml")):
        return f"is an HTML page, not a model: the download went to a login or error page; {_FETCH_AGAIN} from the address of the file itself"
    if text.startswith(b"version https://git-lfs.github.com/spec"):
        wanted = re.search(rb"\nsize (\d+)", head)
        of = f" of {wanted.group(1).decode()} bytes" if wanted else ""
        return f"is a Git LFS pointer, not the model{of} it points to; run `git lfs pull`, or download the file itself"
    if text.startswith((b"{", b"[")):
        return f"is a JSON document, not a model (perhaps the answer of a server that refused the download); {_FETCH_AGAIN}"
    if len(head) > 9 and head[8:10] == b'{"':
        return "is a safetensors file; edgeinfer reads GGUF files: convert it with llama.cpp's convert_hf_to_gguf.py"
    for magic, what in _OTHER_FILES:
        if head.startswith(magic):
            return f"is {what}"
    if not head.strip(b"\0"):
        return f"starts with zero bytes, as a file does whose download was prepared but not done; {_FETCH_AGAIN}"
    shown = "".join(chr(byte) if 32 <= byte < 127 else f"\\x{byte:02x}" for byte in head[:4])
    return f"is not a GGUF file: it starts with '{shown}' where 'GGUF' was expected{part_hint(name)}"
