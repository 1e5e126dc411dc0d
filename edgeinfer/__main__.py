"""Where the command `edgeinfer` and `python -m edgeinfer` begin. Imports as good as nothing until Ctrl-C is no traceback any more."""

from __future__ import annotations

import contextlib
import os
import signal
from types import FrameType
from typing import NoReturn

_INTERRUPTED = 130  # what `edgeinfer.cli.console` ends with later on


def main() -> None:
    """Imports the command line and runs it. Where a shell has SIGINT ignored, as in the background, it stays ignored."""
    handler = signal.getsignal(signal.SIGINT)
    if handler is signal.default_int_handler:
        signal.signal(signal.SIGINT, _end)
    from edgeinfer.cli.main import main as run

    if handler is signal.default_int_handler:
        signal.signal(signal.SIGINT, handler)
    run()


def _end(number: int, frame: FrameType | None) -> NoReturn:
    """Nothing is under way yet that would have to be put in order."""
    with contextlib.suppress(OSError):  # standard error may be closed
        os.write(2, b"\n")
    os._exit(_INTERRUPTED)


if __name__ == "__main__":
    main()
