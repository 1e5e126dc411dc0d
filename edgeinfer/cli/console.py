"""What every command shares: streams that cannot fail on a character, errors as one line with an exit code, progress on a terminal only.

Standard output carries a command's result and nothing else; everything a person only wants to watch goes to standard error.
"""

from __future__ import annotations

import errno
import functools
import gc
import json
import os
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TextIO

from edgeinfer.core.errors import EdgeInferError, InvalidRequestError
from edgeinfer.core.printable import printable

if TYPE_CHECKING:
    from rich.progress import Progress

    from edgeinfer.engine import Engine

INTERRUPTED = 130  # 128 + SIGINT, as shells report it
BROKEN_PIPE = 141  # 128 + SIGPIPE
FAILED = 1
OUT_OF_MEMORY = 3
LONG = 1.0  # seconds that a command may be silent about what happens once
UNWRITABLE = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)  # what writing to a full or broken disk ends with, wherever the output goes


def prepare_streams() -> None:
    """Make printing safe in every locale (a character that the terminal's encoding lacks is printed as an escape), and warnings one line each."""
    _open_closed_streams()
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")
    if hasattr(sys.stdin, "reconfigure"):
        sys.stdin.reconfigure(errors="surrogateescape")  # `text_argument` refuses what is no UTF-8, with a message
    warnings.showwarning = _show_warning


def _open_closed_streams() -> None:
    """Standard streams that the caller closed become the null device.

    Python has None in their place: reading fails, `print` to a missing standard error goes to standard output, and the next file that is opened, such
    as a model, gets the number that everything else takes for a standard stream.
    """
    for number, name, mode in ((0, "stdin", "r"), (1, "stdout", "w"), (2, "stderr", "w")):
        if getattr(sys, name) is not None:
            continue
        try:
            os.fstat(number)
        except OSError:
            null = os.open(os.devnull, os.O_RDWR)
            if null != number:
                os.dup2(null, number)
                os.close(null)
        setattr(sys, name, open(number, mode, encoding="utf-8", closefd=False))  # noqa: SIM115 (lives as long as the process)


def _discard_standard_output() -> None:
    """What is still buffered cannot be written: without this the interpreter complains when it flushes at exit."""
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, sys.stdout.fileno())
    os.close(null)


def _show_warning(message: Warning | str, *_: Any, **__: Any) -> None:
    note("edgeinfer: warning: " + " ".join(str(message).splitlines()))


def is_terminal(stream: TextIO) -> bool:
    """Whether a person is watching a stream."""
    return stream is not None and stream.isatty()


def note(text: str) -> None:
    """One line to standard error."""
    print(text, file=sys.stderr, flush=True)


def print_error(error: object) -> None:
    """`edgeinfer: error: ...` on one line of standard error."""
    note("edgeinfer: error: " + " ".join(str(error).splitlines()))


def print_json(value: Any) -> None:
    """One JSON object on one line of standard output, in ASCII, so that no locale can spoil it. NaN is no JSON and raises ValueError."""
    print(json.dumps(value, allow_nan=False), flush=True)


def guarded(command: Callable[..., None]) -> Callable[..., None]:
    """A command that ends with one line and an exit code instead of a traceback: for our own errors, and for what users and machines do: Ctrl-C, a
    reader that went away, a full disk, refused memory."""

    @functools.wraps(command)
    def run(*arguments: Any, **options: Any) -> None:
        try:
            command(*arguments, **options)
            sys.stdout.flush()
        except EdgeInferError as error:
            print_error(error)
            raise SystemExit(error.exit_code) from None
        except KeyboardInterrupt:
            note("")
            raise SystemExit(INTERRUPTED) from None
        except BrokenPipeError:
            _discard_standard_output()
            raise SystemExit(BROKEN_PIPE) from None
        except OSError as error:
            if error.errno not in UNWRITABLE:
                raise
            _discard_standard_output()
            print_error(f"the output cannot be written: {error.strerror}")
            raise SystemExit(FAILED) from None
        except MemoryError:
            print_error("the system refused more memory; free memory, raise the limit (ulimit -v, control group), or use a smaller context or model")
            raise SystemExit(OUT_OF_MEMORY) from None

    return run


def text_argument(name: str, text: str) -> str:
    """An argument as text. In a locale without UTF-8 Python hands over undecoded bytes in disguise; they are decoded here.

    Raises InvalidRequestError when the bytes are not UTF-8: such a prompt would have no token ids.
    """
    try:
        return text.encode("utf-8", "surrogateescape").decode("utf-8")
    except UnicodeError as error:
        raise InvalidRequestError(f"{name} is not valid UTF-8 (byte {getattr(error, 'start', 0)}); pass UTF-8 text") from error


@contextmanager
def loading(
    model: str,
    backend: str,
    context: int | None,
    threads: int | None,
    cache_type: str | None = None,
    provider: str | None = None,
    minimum_share: float | None = None,
) -> Iterator[Engine]:
    """A loaded engine, closed at the end. A person at a terminal sees that loading goes on; elsewhere a line says what takes long about it."""
    _import_numpy_without_threads()
    gc.disable()  # loading makes a million objects that stay, and no garbage to speak of
    from edgeinfer import Engine
    from edgeinfer.core.announcements import background, listening
    from edgeinfer.core.host import usable_cores, worker_threads

    wanted, sensible = worker_threads(threads), usable_cores()
    if wanted.count > sensible.count:
        note(f"edgeinfer: warning: {wanted.count} threads ({wanted.reason}) wait for each other on {sensible.count} cores ({sensible.reason}): this is slow")
    watched = is_terminal(sys.stderr)
    label = f"loading {printable(model)} ..."
    if watched:
        _rewrite_line(label)
    try:
        with listening(functools.partial(_on_line, label) if watched else _noted_if_long):
            engine = Engine.load(
                model, backend=backend, context=context, threads=threads, cache_type=cache_type, provider=provider, minimum_share=minimum_share
            )
    finally:
        gc.enable()
        if watched:
            _rewrite_line("")
    gc.freeze()
    if backend == "auto":
        note(f"edgeinfer: {engine.backend_choice}")
    if provider is not None:
        note(f"edgeinfer: {engine.capabilities.placement}")
    with engine:
        yield engine
    for work in background():
        note(f"edgeinfer: {work}, once, before this ends ...")


def _rewrite_line(text: str) -> None:
    """Of a terminal."""
    sys.stderr.write("\r\x1b[2K" + text)
    sys.stderr.flush()


@contextmanager
def _on_line(label: str, what: str) -> Iterator[None]:
    """Shows at a terminal what is being done in place of `label`, which stands there again afterwards."""
    _rewrite_line(f"{what} ...")
    yield
    _rewrite_line(label)


@contextmanager
def _noted_if_long(what: str) -> Iterator[None]:
    """One line about what is being done, if it takes longer than it takes to wonder."""
    from threading import Timer

    timer = Timer(LONG, note, [f"edgeinfer: {what} ..."])
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def _import_numpy_without_threads() -> None:
    """NumPy's linear algebra starts a thread for every core when it is imported, which takes as long as a third of the import. Engines never call it."""
    name = "OPENBLAS_NUM_THREADS"
    if name not in os.environ:
        os.environ[name] = "1"
        import numpy  # noqa: F401

        del os.environ[name]  # processes that we start decide for themselves


class ProgressReporter:
    """Shows how far a pull is: a bar on a terminal, otherwise only the lines of `say`. A context manager."""

    def __init__(self, label: str) -> None:
        self._label = label
        self._bar: Progress | None = None
        self._tasks: dict[str, Any] = {}

    def __enter__(self) -> ProgressReporter:
        if is_terminal(sys.stderr):
            from rich.console import Console
            from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn

            columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn(), TimeRemainingColumn())
            self._bar = Progress(*columns, console=Console(stderr=True))
            self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._bar is not None:
            self._bar.stop()

    def say(self, text: str) -> None:
        """One line about what happens now."""
        if self._bar is not None:
            self._bar.console.print(text, markup=False, highlight=False)
        else:
            note(text)

    def progress(self, activity: str, done: int, total: int) -> None:
        """`done` of `total` bytes of an activity."""
        if activity not in self._tasks:
            if self._bar is None:
                note(f"{activity} {self._label} ({total / 1e6:,.0f} MB)")
                self._tasks[activity] = None
            else:
                self._tasks[activity] = self._bar.add_task(f"{activity} {self._label}", total=total)
        if self._bar is not None:
            self._bar.update(self._tasks[activity], completed=done)


def megabytes(count: int) -> str:
    """Bytes as a person reads them: decimal megabytes."""
    return f"{count / 1e6:,.0f} MB" if count >= 1e6 else f"{count / 1e3:,.0f} kB"


def print_table(header: Sequence[str], rows: Sequence[Sequence[str]], with_header: bool = True) -> None:
    """A plain table on standard output: columns in line, no colours, so that it can be cut and read by programs."""
    widths = [max(len(line[column]) for line in [header, *rows]) for column in range(len(header))]
    for line in [header, *rows] if with_header else rows:
        print("  ".join(cell.ljust(width) for cell, width in zip(line, widths)).rstrip())
