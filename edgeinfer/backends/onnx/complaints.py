"""What ONNX Runtime writes to standard error about a provider. Called by `session`.

A provider that cannot be had with the options it was given is left out of the session, and why stands in ONNX Runtime's log alone. That log has no other
way out, so standard error itself, the file descriptor, is led into a file while a session is made.
"""

from __future__ import annotations

import os
import re
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

_STANDARD_ERROR = 2
_ENTRY = re.compile(r"(?:\x1b\[[0-9;]*m)?\d{4}-\d\d-\d\d \S+ \[([VIWEF]):onnxruntime:[^\n]*?, \S+:\d+ [^\]\n]*\] ([^\n\x1b]*)(?:\s*\x1b\[m)?\n?")
"""One entry of the log: its level and its text. In colours it ends with their reset, which may stand on a later line."""
_WHERE = re.compile(r"\[ONNXRuntimeError\] : \d+ : \w+ : |/\S+\.(cc|cpp|h):\d+ [^/]*?\)>? (?=[A-Z\[/])")
"""Where in ONNX Runtime's own source something went wrong: it stands before the reason."""
_MARKS = re.compile(r"^\[ERROR\] (\[[\w-]+\] )?")
_lock = threading.Lock()


@dataclass
class Complaints:
    """What was written, once that is over."""

    text: str = ""

    @property
    def reasons(self) -> str:
        """The errors of the log, one after the other; empty where there are none."""
        return "; ".join(dict.fromkeys(_MARKS.sub("", without_source(entry[2])).rstrip(".") for entry in _ENTRY.finditer(self.text) if entry[1] in "EF"))

    def pass_on(self, with_log: bool) -> None:
        """Writes to standard error what would have been there, or without ONNX Runtime's log, for which an error speaks."""
        text = self.text if with_log else _ENTRY.sub("", self.text)
        if text and sys.stderr is not None:
            sys.stderr.write(text)
            sys.stderr.flush()


def without_source(text: str) -> str:
    """A message of ONNX Runtime on one line, without the places in its source."""
    return _WHERE.sub("", " ".join(text.split()))


@contextmanager
def heard() -> Iterator[Complaints]:
    """Keeps what this process writes to standard error until the end of the `with`; what is to become of it is up to the caller."""
    found = Complaints()
    with _lock:
        if sys.stderr is not None:
            sys.stderr.flush()
        try:
            original = os.dup(_STANDARD_ERROR)
        except OSError:  # it is closed, and nobody would read it
            yield found
            return
        try:
            with tempfile.TemporaryFile() as kept:
                os.dup2(kept.fileno(), _STANDARD_ERROR)
                try:
                    yield found
                finally:
                    if sys.stderr is not None:
                        sys.stderr.flush()
                    os.dup2(original, _STANDARD_ERROR)
                    kept.seek(0)
                    found.text = kept.read().decode("utf-8", "backslashreplace")
        finally:
            os.close(original)
