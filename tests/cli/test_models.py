"""`edgeinfer pull`, `list`, `inspect` and `tokenize`."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from edgeinfer.gguf.writer import write_gguf
from tests.support.tiny_models import tiny_llama

Command = Callable[..., Any]


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_llama(tmp_path_factory.mktemp("tiny") / "tiny.gguf")


def test_list_shows_what_is_here(command: Command, tmp_path: Path) -> None:
    folder = tmp_path / "home" / "models"
    folder.mkdir(parents=True)
    (folder / "gemma-3-270m.gguf").write_bytes(b"wrong")
    (folder / "qwen2.5-coder-0.5b.gguf.part").write_bytes(bytes(2_000_000))
    ended = command("list")
    lines = {line.split()[0]: line for line in ended.out.splitlines()}
    assert lines["smollm2-135m"].split()[-1] == "-"
    assert lines["gemma-3-270m"].endswith("wrong size (0 kB)")
    assert lines["qwen2.5-coder-0.5b"].endswith("partial (2 MB)")
    assert str(folder) in ended.err


def test_list_as_json(command: Command, tmp_path: Path) -> None:
    value = json.loads(command("list", "--json").out)
    assert [model["name"] for model in value["models"]] == ["smollm2-135m", "gemma-3-270m", "qwen2.5-coder-0.5b"]
    assert value["models"][0]["state"] == "absent" and value["models"][0]["path"] == str(tmp_path / "home" / "models" / "smollm2-135m.gguf")


def test_pull_of_an_unknown_name(command: Command) -> None:
    ended = command("pull", "smolm2-135m")
    assert ended.code == 2 and ended.err == "edgeinfer: error: there is no model card called 'smolm2-135m'; did you mean smollm2-135m?\n"


def test_inspect_shows_metadata_tensors_and_totals(command: Command, tiny: Path) -> None:
    ended = command("inspect", str(tiny))
    assert ended.code == 0
    assert str(tiny) in ended.out and "general.architecture" in ended.out and "blk.0.attn_q.weight" in ended.out
    assert any(line.startswith("all ") for line in ended.out.splitlines())


def test_inspect_as_json(command: Command, tiny: Path) -> None:
    value = json.loads(command("inspect", str(tiny), "--json").out)
    assert value["metadata"]["general.architecture"] == {"type": "STRING", "value": "llama"}
    assert value["metadata"]["tokenizer.ggml.tokens"]["value"]["elements"] > 256
    total = value["totals"][-1]
    assert total["format"] == "all" and total["bytes"] == sum(tensor["bytes"] for tensor in value["tensors"])
    assert value["memory_plan"]["weights"] > 0 and value["refusal"] is None
    assert json.loads(command("inspect", str(tiny), "--json", "--context", "9999").out)["memory_plan"]["KV cache"] > value["memory_plan"]["KV cache"]


def test_inspect_prints_the_program(command: Command, tiny: Path) -> None:
    lines = command("inspect", str(tiny), "--program").out.splitlines()
    assert lines[0].split()[0] == "0" and any("rms_norm" in line for line in lines) and "logits" in lines[-1]


def test_inspect_prints_the_program_as_json(command: Command, tiny: Path) -> None:
    listing = command("inspect", str(tiny), "--program").out.splitlines()
    ended = command("inspect", str(tiny), "--program", "--json")
    assert json.loads(ended.out.splitlines()[-1]) == {"program": listing} and len(listing) > 5


def test_inspect_of_hostile_texts_stays_on_its_lines(command: Command, tmp_path: Path) -> None:
    path = tmp_path / "hostile.gguf"
    write_gguf(path, {"general.architecture": "llama", "general.name": "\x1b[31mred\nsecond \u202e line", "x.nan": float("nan")}, {})
    ended = command("inspect", str(path))
    assert "this model cannot be run" in ended.out
    assert "\x1b" not in ended.out and "\u202e" not in ended.out and "\\x1b[31mred\\nsecond" in ended.out
    assert json.loads(command("inspect", str(path), "--json").out)["metadata"]["x.nan"]["value"] == "nan"


def test_inspect_of_no_model(command: Command, tmp_path: Path) -> None:
    (tmp_path / "note.gguf").write_text("this is not a model at all, only a note of some length")
    ended = command("inspect", str(tmp_path / "note.gguf"))
    assert ended.code == 2 and ended.err.startswith("edgeinfer: error: ") and ended.err.count("\n") == 1


def test_tokenize_and_back(command: Command, tiny: Path) -> None:
    value = json.loads(command("tokenize", str(tiny), "hello wörld", "--json").out)
    assert value["token_ids"] and len(value["pieces"]) == len(value["token_ids"])
    table = command("tokenize", str(tiny), "hello wörld").out.splitlines()
    assert [int(line.split()[0]) for line in table[1:]] == value["token_ids"]


def test_tokenize_switches(command: Command, tiny: Path) -> None:
    plain = json.loads(command("tokenize", str(tiny), "a", "--json").out)["token_ids"]
    special = json.loads(command("tokenize", str(tiny), "a", "--add-special", "--json").out)["token_ids"]
    assert special[-len(plain) :] == plain and len(special) == len(plain) + 1


@pytest.mark.parametrize("context", ["0", "-5", "1"])
@pytest.mark.parametrize("switch", ["--json", "--program"])
def test_inspect_refuses_the_contexts_that_loading_refuses(command: Command, tiny: Path, context: str, switch: str) -> None:
    ended = command("inspect", str(tiny), "--context", context, switch)
    assert (ended.code, ended.out) == (2, "")
    assert f"context is {context}; it must be a whole number of at least 2" in ended.err


@pytest.mark.parametrize("switch", [["--backend", "cuda"], ["--threads", "100000"]])
def test_choices_that_do_not_exist_are_wrong_input(command: Command, tiny: Path, switch: list[str]) -> None:
    ended = command("run", str(tiny), "-p", "a", *switch)
    assert (ended.code, ended.out) == (2, "")
    assert switch[1] in ended.err and ended.err.count("\n") == 1


def test_an_instruction_set_that_does_not_exist_is_wrong_input(command: Command, tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EDGEINFER_ISA", "sse9")
    ended = command("run", str(tiny), "-p", "a")
    assert ended.code == 2 and "'sse9' cannot be used on this machine" in ended.err and ended.err.count("\n") == 1
