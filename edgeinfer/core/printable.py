"""Text from strangers (file names, tensor names, metadata keys) made safe to print: in messages, on terminals, in C locales; and paths for libraries that
take UTF-8. Anyone may call it."""

from __future__ import annotations

import errno
import os


def printable(text: str, limit: int = 200) -> str:
    """The text with control characters and undecodable bytes as backslash escapes, cut to `limit` characters with an ellipsis."""
    shown = text if len(text) <= limit else text[:limit] + "..."
    if shown.isprintable():
        return shown
    return "".join(character if character.isprintable() else character.encode("unicode_escape").decode("ascii") for character in shown)


def printable_path(path: str | bytes | os.PathLike[str] | os.PathLike[bytes]) -> str:
    """A path as text that any UTF-8 stream can print: bytes that are no UTF-8 appear as backslash escapes."""
    return printable(os.fsdecode(path), limit=4096)


def utf8_path(path: str | os.PathLike[str]) -> str:
    """A path for a library that will encode it in UTF-8, whatever Python's own encoding of paths is (ASCII in the C locale without UTF-8 mode).

    Raises OSError with EILSEQ for bytes that are no UTF-8, which such a library cannot be told.
    """
    try:
        return os.fsencode(path).decode("utf-8")
    except UnicodeDecodeError:
        raise OSError(errno.EILSEQ, "its name is not valid UTF-8", os.fspath(path)) from None
