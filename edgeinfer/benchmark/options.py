"""What the command line of `edgeinfer bench` may say, read and checked."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from edgeinfer.benchmark.rounds import PEERS
from edgeinfer.core import env
from edgeinfer.core.errors import InvalidRequestError


def parse_numbers(text: str, what: str, example: str) -> tuple[int, ...]:
    """`"32,512"` -> (32, 512), each once. Raises InvalidRequestError for anything that is not whole numbers with commas between."""
    parts = [part.strip() for part in text.split(",") if part.strip()]
    if not parts or not all(part.isascii() and part.isdigit() for part in parts):
        raise InvalidRequestError(f"{what} are {text!r}; expected whole numbers with commas between, such as {example}")
    return tuple(dict.fromkeys(int(part) for part in parts))


def parse_peers(text: str) -> tuple[str, ...]:
    """`"llamacpp,ik_llamacpp"` -> both names; `"none"` -> (). Names are checked where they are used."""
    if text.strip() == "none":
        return ()
    return tuple(dict.fromkeys(part.strip() for part in text.split(",") if part.strip()))


def parse_interpreters(pairs: Sequence[str]) -> dict[str, str]:
    """`["ik_llamacpp=/path/python"]` -> {"ik_llamacpp": "/path/python"}. Raises InvalidRequestError for another form or an unknown peer."""
    found = {}
    for pair in pairs:
        peer, separator, interpreter = pair.partition("=")
        if not separator or not interpreter or peer not in PEERS:
            raise InvalidRequestError(f"--peer-python is {pair!r}; expected PEER=INTERPRETER, with a peer of {', '.join(PEERS)}")
        found[peer] = interpreter
    return found


def peer_python(name: str) -> Path:
    """The Python of an environment in EDGEINFER_PEERS (made by `make bench-peers`), whether it is there or not."""
    folder = Path(env.value("EDGEINFER_PEERS") or Path(__file__).resolve().parents[2] / ".cache" / "peers")
    return folder / name / "bin" / "python"


def peer_interpreters(given: Mapping[str, str]) -> dict[str, str]:
    """The Python of each peer: as given, or of its environment in EDGEINFER_PEERS (made by `make bench-peers`). Others are looked for in this one."""
    found = {peer: peer_python(peer) for peer in PEERS}
    return {peer: str(path) for peer, path in found.items() if os.path.exists(path)} | dict(given)
