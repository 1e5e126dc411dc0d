"""The command line as a process of its own: start-up, locales, signals and pipes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
import tomllib
from pathlib import Path

import pytest

from edgeinfer.core.home import kernel_cache_path
from tests.support.tiny_models import chain_model

ROOT = Path(__file__).resolve().parent.parent.parent
EDGEINFER = [sys.executable, "-m", "edgeinfer"]


def environment(**more: str) -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(ROOT), **more}


def test_help_imports_nothing_heavy() -> None:
    program = (
        "import sys\n"
        "sys.argv = ['edgeinfer', '--help']\n"
        "from edgeinfer.cli.main import main\n"
        "try:\n    main()\nexcept SystemExit:\n    pass\n"
        "print(sorted({name.split('.')[0] for name in sys.modules}), file=sys.stderr)"
    )
    ran = subprocess.run([sys.executable, "-c", program], env=environment(), capture_output=True, text=True, check=True)
    heavy = {"numpy", "numba", "llvmlite", "tokenizers", "jinja2", "rich", "llama_cpp", "onnxruntime", "huggingface_hub", "asyncio", "pydantic"}
    assert "Usage" in ran.stdout
    assert not heavy & set(eval(ran.stderr.splitlines()[-1]))


def test_help_answers_at_once() -> None:
    """The bar is 0.3 s on a quiet machine; the best of five with room for a busy one shows a heavy import all the same."""
    seconds = []
    for _ in range(5):
        began = time.monotonic()
        subprocess.run([*EDGEINFER, "--help"], env=environment(), stdout=subprocess.DEVNULL, check=True)
        seconds.append(time.monotonic() - began)
    assert min(seconds) < 0.9


@pytest.mark.parametrize(
    "locale", [{"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}, {"LC_ALL": "C"}, {"LC_ALL": "C.UTF-8", "PYTHONUTF8": "0"}]
)
@pytest.mark.parametrize("name", ["Загрузки/模型 ü'q/a b.gguf", os.fsdecode(b"bad\xff\xfename.gguf")])
def test_any_path_in_any_locale(tmp_path: Path, locale: dict[str, str], name: str) -> None:
    path = tmp_path / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"GGUF" + bytes(4))
    ran = subprocess.run([os.fsencode(part) for part in [*EDGEINFER, "inspect", str(path)]], env=environment(**locale), capture_output=True)
    assert ran.returncode == 2 and ran.stderr.startswith(b"edgeinfer: error: ") and ran.stderr.count(b"\n") == 1
    assert b"Traceback" not in ran.stderr and b"UnicodeEncodeError" not in ran.stderr


@pytest.mark.parametrize("name", ["Загрузки/模型 ü'q/a b.gguf", os.fsdecode(b"bad\xff\xfename.gguf")])
def test_commands_work_on_any_path_in_the_c_locale(tmp_path: Path, name: str) -> None:
    """Folders for temporary files and for what is kept are named alike; the text of a prompt is UTF-8 all the same."""
    path = tmp_path / name
    path.parent.mkdir(parents=True, exist_ok=True)
    chain_model(path, ["é", "中", "!"], kind="bpe")
    folder = str(path.parent)
    c_locale = environment(LC_ALL="C", PYTHONUTF8="0", PYTHONCOERCECLOCALE="0", TMPDIR=folder, HOME=folder, EDGEINFER_HOME=folder)
    c_locale.setdefault("EDGEINFER_CACHE", str(kernel_cache_path()))  # what is compiled already need not be compiled again
    for arguments, expected in (
        (["run", str(path), "-p", "中 x", "-n", "8"], b"\\xe9\\u4e2d!"),
        (["tokenize", str(path), "中", "--json"], b'"token_ids"'),
        (["compile", str(path), "--weights"], b""),
        (["inspect", str(path)], b"llama"),
    ):
        ran = subprocess.run([os.fsencode(part) for part in [*EDGEINFER, *arguments]], env=c_locale, capture_output=True)
        assert (ran.returncode, expected in ran.stdout) == (0, True), (arguments, ran.stdout, ran.stderr)


@pytest.mark.parametrize("name", ["Папка ü", os.fsdecode(b"home\xff")])
def test_a_home_of_any_name_in_the_c_locale(tmp_path: Path, name: str) -> None:
    variables = environment(LC_ALL="C", PYTHONUTF8="0", PYTHONCOERCECLOCALE="0", EDGEINFER_HOME=str(tmp_path / name))
    ran = subprocess.run([*EDGEINFER, "list"], env=variables, capture_output=True)
    assert ran.returncode == 0 and b"smollm2-135m" in ran.stdout and b"Traceback" not in ran.stderr


def test_a_reader_that_goes_away_is_no_error(tmp_path: Path) -> None:
    program = (
        "import sys\n"
        "sys.argv = ['edgeinfer', 'list']\n"
        "from edgeinfer.cli import console, main\n"
        "import edgeinfer.cli.list\n"
        "console.print_table = lambda *a, **k: [print('x' * 1000) for _ in range(10_000)]\n"
        "main.main()"
    )
    with subprocess.Popen([sys.executable, "-c", program], env=environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None and process.stderr is not None
        process.stdout.read(10)
        process.stdout.close()
        errors = process.stderr.read()
        assert process.wait(timeout=60) == 141
    assert errors == b""


def test_ctrl_c_ends_with_one_line(tmp_path: Path) -> None:
    program = (
        "import sys, time\n"
        "sys.argv = ['edgeinfer', 'list']\n"
        "from edgeinfer.cli import console, main\n"
        "def wait(*a, **k):\n    print('ready', flush=True)\n    time.sleep(60)\n"
        "console.print_table = wait\n"
        "main.main()"
    )
    with subprocess.Popen([sys.executable, "-c", program], env=environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None and process.stderr is not None
        assert process.stdout.readline() == b"ready\n"
        process.send_signal(signal.SIGINT)
        assert process.stderr.read() == b"\n"
        assert process.wait(timeout=60) == 130


@pytest.mark.parametrize("ignored", [False, True])
def test_ctrl_c_while_the_command_line_is_imported_ends_with_one_line(tmp_path: Path, ignored: bool) -> None:
    (tmp_path / "typer.py").write_text("import time\nprint('ready', flush=True)\ntime.sleep(60)\n")
    begin = "import signal, sys; signal.signal(signal.SIGINT, signal.SIG_IGN); from edgeinfer.__main__ import main; main()"
    command = [sys.executable, *(("-c", begin) if ignored else ("-m", "edgeinfer")), "list"]
    slow = environment(PYTHONPATH=os.pathsep.join([str(tmp_path), str(ROOT)]))
    with subprocess.Popen(command, env=slow, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None and process.stderr is not None
        assert process.stdout.readline() == b"ready\n"
        process.send_signal(signal.SIGINT)
        if ignored:
            with pytest.raises(subprocess.TimeoutExpired):
                process.wait(timeout=1)
            process.kill()
        else:
            assert process.stderr.read() == b"\n"
            assert process.wait(timeout=60) == 130


def test_the_installed_command_begins_where_ctrl_c_is_seen_to() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert project["scripts"] == {"edgeinfer": "edgeinfer.__main__:main"}
    ran = subprocess.run([sys.executable, "-m", "edgeinfer", "--version"], env=environment(), capture_output=True, text=True)
    assert ran.returncode == 0 and ran.stdout.startswith("edgeinfer ") and ran.stderr == ""


def test_a_misspelt_variable_is_named_before_the_result() -> None:
    ran = shell('"$@" --version', EDGEINFER_HOM="/x")
    assert ran.returncode == 0 and ran.stdout.startswith(b"edgeinfer ")
    assert ran.stderr == b"edgeinfer: warning: the environment variable EDGEINFER_HOM is not one that edgeinfer reads; did you mean EDGEINFER_HOME?\n"


def test_version() -> None:
    from edgeinfer.core.version import __version__

    ran = subprocess.run([*EDGEINFER, "--version"], env=environment(), capture_output=True, text=True, check=True)
    assert ran.stdout == f"edgeinfer {__version__}\n"


@pytest.mark.parametrize("arguments", [["nonsense"], ["run"], ["run", "--nonsense"], ["list", "extra"]])
def test_wrong_usage_ends_with_2(arguments: list[str]) -> None:
    ran = subprocess.run([*EDGEINFER, *arguments], env=environment(), capture_output=True, text=True)
    assert ran.returncode == 2 and "Usage" in ran.stderr and ran.stdout == ""


def test_no_arguments_show_the_help() -> None:
    ran = subprocess.run(EDGEINFER, env=environment(), capture_output=True, text=True)
    assert "Commands:" in ran.stdout + ran.stderr and "Traceback" not in ran.stderr


@pytest.mark.parametrize("text", ["grün 模型", "plain"])
@pytest.mark.parametrize("locale", [{"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}, {"LC_ALL": "C.UTF-8"}])
def test_text_arguments_are_utf_8_in_any_locale(locale: dict[str, str], text: str) -> None:
    program = "import sys; from edgeinfer.cli.console import text_argument as t; assert t('x', sys.argv[1]) == t('x', ascii_free) == ascii_free"
    program = program.replace("ascii_free", ascii(text))
    subprocess.run([part.encode() for part in [sys.executable, "-c", program, text]], env=environment(**locale), check=True)


def test_the_list_of_commands_cuts_no_sentence() -> None:
    ran = subprocess.run([*EDGEINFER, "--help"], env=environment(COLUMNS="80"), capture_output=True, text=True, check=True)
    commands = ran.stdout.split("Commands:")[1]
    assert "verify" in commands and "..." not in commands


def shell(command: str, **more: str) -> subprocess.CompletedProcess[bytes]:
    """Runs `command` in a shell, where "$@" is the command line."""
    return subprocess.run(["/bin/sh", "-c", command, "sh", *EDGEINFER], env=environment(**more), capture_output=True, timeout=120)


@pytest.mark.parametrize("arguments", ["list", "list --json", "--help", "--version"])
def test_a_full_disk_is_one_line(arguments: str) -> None:
    if not os.path.exists("/dev/full"):
        pytest.skip("there is no /dev/full here")
    ran = shell(f'"$@" {arguments} > /dev/full')
    assert ran.returncode == 1
    assert ran.stderr.splitlines()[-1] == b"edgeinfer: error: the output cannot be written: No space left on device"
    assert b"Traceback" not in ran.stderr and b"Exception ignored" not in ran.stderr


def test_notes_never_go_to_standard_output_when_standard_error_is_closed(tmp_path: Path) -> None:
    with_both = shell('"$@" list', EDGEINFER_HOME=str(tmp_path))
    without = shell('"$@" list 2>&-', EDGEINFER_HOME=str(tmp_path))
    assert b"folder: " in with_both.stderr and b"folder: " not in with_both.stdout
    assert (without.returncode, without.stdout, without.stderr) == (0, with_both.stdout, b"")


def test_closed_standard_output_is_no_defect() -> None:
    ran = shell('"$@" list >&-')
    assert ran.returncode == 0 and ran.stderr.startswith(b"folder: ") and ran.stderr.count(b"\n") == 1


def test_closed_standard_input_is_empty_input(tmp_path: Path) -> None:
    """The model is opened while descriptor 0 is free, so that it must not become what is read as the text."""
    from tests.support.tiny_models import tiny_llama

    tiny = tiny_llama(tmp_path / "tiny.gguf")
    ran = shell(f'"$@" tokenize {tiny} - --json <&-')
    assert (ran.returncode, ran.stdout, ran.stderr) == (0, b'{"token_ids": [], "pieces": []}\n', b"")
