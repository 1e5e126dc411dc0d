"""Model cards: their fields, and what a name or a path resolves to."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from edgeinfer import cards
from edgeinfer.core.errors import ModelNotFoundError, PullError

GOOD = """
name = "tiny"
title = "Tiny"
kind = "chat"
architecture = "llama"
parameters = 1
quantization = "F32"
licence = "MIT"
size = 4
sha256 = "0000000000000000000000000000000000000000000000000000000000000000"
[[source]]
kind = "package"
packages = ["tiny==1.0"]
files = ["tiny/data.bin"]
[[source]]
kind = "hub"
repository = "someone/tiny"
file = "tiny.gguf"
revision = "0123"
"""


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("EDGEINFER_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


def write(tmp_path: Path, text: str, name: str = "tiny.toml") -> Path:
    path = tmp_path / name
    path.write_text(text, encoding="utf-8")
    return path


def test_the_shipped_cards() -> None:
    found = cards.load_cards()
    assert next(iter(found)) == cards.DEFAULT_MODEL
    assert {name: (card.size, card.sha256[:8], card.kind, card.architecture) for name, card in found.items()} == {
        "smollm2-135m": (98_362_432, "b179c952", "chat", "llama"),
        "gemma-3-270m": (253_113_024, "a5fd3b62", "completion", "gemma3"),
        "qwen2.5-coder-0.5b": (491_400_064, "1d961463", "chat", "qwen2"),
    }


def test_a_card_is_read(tmp_path: Path) -> None:
    card = cards.read_card(write(tmp_path, GOOD))
    assert card.sources == (
        cards.PackageSource(("tiny==1.0",), ("tiny/data.bin",)),
        cards.HubSource("someone/tiny", "tiny.gguf", "0123"),
    )


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('name = "tiny"', 'name = "small"', "must equal the file's name"),
        ('kind = "chat"', 'kind = "talk"', "'chat' or 'completion'"),
        ("size = 4", 'size = "4"', "'size' must be of type int"),
        ("size = 4", "size = true", "'size' must be of type int"),
        ("size = 4", "size = 0", "size at least 1"),
        ('sha256 = "0000', 'sha256 = "xyz0', "64 hexadecimal digits"),
        ('licence = "MIT"', "", "'licence' must be of type str"),
        ('licence = "MIT"', 'licence = "MIT"\ncolour = "red"', "unknown field 'colour'"),
        ('files = ["tiny/data.bin"]', 'files = ["a", "b"]', "1 packages, but 2 files"),
        ('packages = ["tiny==1.0"]', 'packages = ["--index-url=x"]', "must be NAME==VERSION"),
        ('packages = ["tiny==1.0"]', "packages = []", "at least one entry"),
        ('kind = "hub"', 'kind = "torrent"', "only 'package' and 'hub'"),
        ('revision = "0123"', "", "'revision'"),
        ('title = "Tiny"', "title = Tiny", "cannot be read"),
    ],
)
def test_a_wrong_card_is_refused_with_its_field(tmp_path: Path, old: str, new: str, message: str) -> None:
    assert old in GOOD
    with pytest.raises(PullError, match=message):
        cards.read_card(write(tmp_path, GOOD.replace(old, new)))


def test_a_path_wins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write(tmp_path, "x", "smollm2-135m")
    assert cards.resolve_model("smollm2-135m") == Path("smollm2-135m")


def test_a_folder_of_a_card_s_name_does_not_hide_the_card(tmp_path: Path, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "smollm2-135m").mkdir()
    (home / "models").mkdir(parents=True)
    (home / "models" / "smollm2-135m.gguf").write_bytes(b"x")
    assert cards.resolve_model("smollm2-135m") == home / "models" / "smollm2-135m.gguf"


def test_a_card_that_was_not_pulled_names_the_command() -> None:
    with pytest.raises(ModelNotFoundError, match=r"has not been pulled yet \(98 MB\); fetch it with: edgeinfer pull smollm2-135m"):
        cards.resolve_model("smollm2-135m")


@pytest.mark.parametrize(
    ("typed", "meant"), [("smollm2", "smollm2-135m"), ("Gemma-3-270M", "gemma-3-270m"), ("qwen2.5-code-0.5b", "qwen2.5-coder-0.5b")]
)
def test_a_misspelt_name_gets_suggestions(typed: str, meant: str) -> None:
    with pytest.raises(ModelNotFoundError, match=f"did you mean .*{meant}"):
        cards.resolve_model(typed)


def test_an_unknown_name_lists_the_cards() -> None:
    with pytest.raises(ModelNotFoundError, match="neither a file nor a model card; the cards are smollm2-135m, gemma"):
        cards.resolve_model("xyzzy")


@pytest.mark.parametrize("text", ["/nowhere/model.gguf", "model.gguf", "./model", "~/nowhere/model", "~nobody-of-this-name/model.gguf"])
def test_a_missing_file(text: str) -> None:
    with pytest.raises(ModelNotFoundError, match="no such file"):
        cards.resolve_model(text)


@pytest.mark.parametrize("text", ["", "x" * 300, "a\0b"])
def test_what_can_be_no_path(text: str) -> None:
    with pytest.raises(ModelNotFoundError):
        cards.resolve_model(text)


def test_a_folder_names_what_is_inside(tmp_path: Path) -> None:
    with pytest.raises(ModelNotFoundError, match=r"is a folder, .*there is no \.gguf file inside"):
        cards.resolve_model(tmp_path)
    write(tmp_path, "x", "b.gguf")
    with pytest.raises(ModelNotFoundError, match=r"is a folder, .*such as '.*/b\.gguf'"):
        cards.resolve_model(f"{tmp_path}/")


def test_special_files_and_broken_links(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.gguf")
    with pytest.raises(ModelNotFoundError, match="not a regular file"):
        cards.resolve_model(tmp_path / "pipe.gguf")
    (tmp_path / "link.gguf").symlink_to("gone.gguf")
    with pytest.raises(ModelNotFoundError, match=r"is a link to 'gone\.gguf', which does not exist"):
        cards.resolve_model(tmp_path / "link.gguf")
    (tmp_path / "loop.gguf").symlink_to("loop.gguf")
    with pytest.raises(ModelNotFoundError):
        cards.resolve_model(tmp_path / "loop.gguf")


@pytest.mark.parametrize("name", ["模型 ü'q/a b.gguf", os.fsdecode(b"bad\xff\xfename.gguf"), "a.gguf"])
def test_every_path_of_the_system_works(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    path = tmp_path / name
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(b"x")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    link = tmp_path / "link"
    link.symlink_to(path)
    for way in (path, str(path), name, f"./{name}", f"~/{name}", link, f"{path.parent}/../{path.parent.name}/{path.name}"):
        assert cards.resolve_model(way).samefile(path)


def test_a_missing_path_with_invalid_unicode_has_a_printable_message() -> None:
    with pytest.raises(ModelNotFoundError) as caught:
        cards.resolve_model(os.fsdecode(b"/bad\xff.gguf"))
    assert str(caught.value).isprintable()


@pytest.mark.parametrize("text", ["https://models.example/x/y.gguf", "hf://x/y"])
def test_an_address_is_not_taken_for_a_path(text: str) -> None:
    with pytest.raises(ModelNotFoundError, match="is an address, and only `edgeinfer pull` opens connections"):
        cards.resolve_model(text)
