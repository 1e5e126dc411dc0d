"""Work that a person should hear of because it takes long and happens once: those who do it announce it, a face that listens shows it.

Without a listener nothing happens. Listening is a matter of the thread that loads an engine, so engines of other threads are not heard. What goes on beside
the work of whoever waits is not announced but can be looked up, by those who wonder why the process does not end.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import ContextVar

Listener = Callable[[str], AbstractContextManager[object]]
"""Takes what is being done, and is left when it is done."""

_listener: ContextVar[Listener | None] = ContextVar("edgeinfer announcements", default=None)


def announced(what: str) -> AbstractContextManager[object]:
    """Around work that takes long: `with announced("compiling 30 kernels"): ...`."""
    listener = _listener.get()
    return listener(what) if listener is not None else nullcontext()


@contextmanager
def listening(listener: Listener) -> Iterator[None]:
    """Hears what this thread announces until the end of the `with`."""
    token = _listener.set(listener)
    try:
        yield
    finally:
        _listener.reset(token)


_background: list[str] = []


@contextmanager
def going_on(what: str) -> Iterator[None]:
    """Around work beside that of everybody else, in a thread that the process waits for before it ends."""
    _background.append(what)
    try:
        yield
    finally:
        _background.remove(what)


def background() -> tuple[str, ...]:
    """What goes on now."""
    return tuple(_background)
