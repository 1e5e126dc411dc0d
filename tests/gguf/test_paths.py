"""Paths as users have them: names of every script, bytes that are no UTF-8, links, directories, pipes, files that may not be read."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from edgeinfer.core.errors import ModelFileError, ModelNotFoundError
from edgeinfer.core.printable import printable, printable_path
from edgeinfer.gguf.reader import GGUFFile
from tests.gguf.raw import one_tensor

ROOT = Path(__file__).resolve().parents[2]
NAMES = ["Загрузки модель.gguf", "模型 ü'q.gguf", 'quote".gguf', "new\nline.gguf", "x" * 200 + ".gguf"]


@pytest.mark.parametrize("name", NAMES)
def test_names_of_every_kind_open_and_print(name: str, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(one_tensor([4]))
    with GGUFFile.open(tmp_path / name) as file:
        assert repr(file).isprintable()
    (tmp_path / name).write_bytes(b"no model")
    with pytest.raises(ModelFileError) as caught:
        GGUFFile.open(tmp_path / name)
    assert str(caught.value).isprintable()


def test_a_name_that_is_no_utf8(tmp_path: Path) -> None:
    path = os.fsencode(tmp_path) + b"/caf\xe9.gguf"
    try:
        Path(os.fsdecode(path)).write_bytes(b"no model")
    except OSError:
        pytest.skip("this file system takes only UTF-8 names")
    with pytest.raises(ModelFileError) as caught:
        GGUFFile.open(os.fsdecode(path))
    assert "caf\\udce9.gguf is not a GGUF file" in str(caught.value)
    str(caught.value).encode("utf-8")


def test_messages_can_be_printed_in_any_locale(tmp_path: Path) -> None:
    """The error of a name that is no UTF-8 reaches standard error, and one in Cyrillic opens, in the C locale as well."""
    (tmp_path / "модель.gguf").write_bytes(one_tensor([4]))
    code = (
        "import sys\nfrom edgeinfer.core.errors import EdgeInferError\nfrom edgeinfer.gguf.reader import GGUFFile\n"
        "GGUFFile.open(sys.argv[1]).close()\n"
        "try:\n    GGUFFile.open(sys.argv[1] + '\\udce9')\nexcept EdgeInferError as error:\n    print(error, file=sys.stderr)\n"
    )
    for locale in ({"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}, {"LC_ALL": "C.UTF-8"}):
        environment = {**os.environ, **locale}
        answer = subprocess.run(
            [sys.executable, "-c", code, str(tmp_path / "модель.gguf")], cwd=ROOT, env=environment, capture_output=True, timeout=60, check=False
        )
        assert answer.returncode == 0, answer.stderr
        assert b"there is no file" in answer.stderr


def test_links_and_relative_paths(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "real").write_bytes(one_tensor([4]))
    (tmp_path / "link.gguf").symlink_to("real")
    monkeypatch.chdir(tmp_path)
    for path in ("link.gguf", "./real", Path("real")):
        with GGUFFile.open(path) as file:
            assert "t" in file.tensors


def test_what_cannot_be_opened(tmp_path: Path) -> None:
    (tmp_path / "dangling.gguf").symlink_to("nowhere")
    (tmp_path / "file").write_bytes(one_tensor([4]))
    for missing in (tmp_path / "nothing.gguf", tmp_path / "dangling.gguf", tmp_path / "file" / "below", f"{tmp_path}/file/", "nul\0inside", ""):
        with pytest.raises(ModelNotFoundError):
            GGUFFile.open(missing)
    for directory in (tmp_path, f"{tmp_path}/"):
        with pytest.raises(ModelFileError, match="is a directory; name the GGUF file inside it"):
            GGUFFile.open(directory)
    with pytest.raises(ModelFileError, match="cannot be opened"):
        GGUFFile.open(tmp_path / ("n" * 300))
    (tmp_path / "loop").symlink_to("loop")
    with pytest.raises(ModelFileError, match="cannot be opened"):
        GGUFFile.open(tmp_path / "loop")


def test_a_pipe_does_not_wait_for_its_writer(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.gguf")
    with pytest.raises(ModelFileError, match="no regular file"):
        GGUFFile.open(tmp_path / "pipe.gguf")
    with pytest.raises(ModelFileError, match="no regular file"):
        GGUFFile.open("/dev/null")


def test_a_file_that_may_not_be_read(tmp_path: Path) -> None:
    path = tmp_path / "secret.gguf"
    path.write_bytes(one_tensor([4]))
    path.chmod(0)
    if os.access(path, os.R_OK):
        pytest.skip("this user may read everything")
    try:
        with pytest.raises(ModelFileError, match="permission denied"):
            GGUFFile.open(path)
    finally:
        path.chmod(stat.S_IRUSR | stat.S_IWUSR)


def test_a_failed_open_leaves_no_descriptor_and_no_mapping(tmp_path: Path) -> None:
    descriptors = Path("/proc/self/fd")
    if not descriptors.exists():
        pytest.skip("no /proc/self/fd on this system")
    (tmp_path / "left-open.gguf").write_bytes(one_tensor([4], 99))
    before = len(list(descriptors.iterdir()))
    for _ in range(20):
        with pytest.raises(Exception, match="unknown ggml type"):
            GGUFFile.open(tmp_path / "left-open.gguf")
    assert len(list(descriptors.iterdir())) == before
    assert "left-open" not in Path("/proc/self/maps").read_text()


def test_printable() -> None:
    assert printable("plain ü 你") == "plain ü 你"
    assert printable("a\x00\x1b\n\u202e\udcff") == r"a\x00\x1b\n\u202e\udcff"
    assert printable("x" * 300) == "x" * 200 + "..."
    assert printable_path(b"/m/\xff") == r"/m/\udcff"
