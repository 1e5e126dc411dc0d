"""Programs: the golden listing of each architecture, the invariants of every program, and rewrites that keep the bits."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edgeinfer.core import env
from edgeinfer.core.errors import ModelFileError, UnsupportedModelError
from edgeinfer.gguf.reader import GGUFFile
from edgeinfer.model import Program, build_program, fuse
from edgeinfer.model.decoder import build_decoder
from edgeinfer.model.program import Operation, Value
from edgeinfer.model.reference import reference_logits
from edgeinfer.model.rewrite import fold_residuals
from edgeinfer.model.spec import architecture_names
from tests.support.tiny_models import tiny_gemma3, tiny_llama, tiny_qwen2

GOLDEN = Path(__file__).parent / "golden"
BUILDERS: dict[str, Callable[..., Path]] = {"llama": tiny_llama, "qwen2": tiny_qwen2, "gemma3": tiny_gemma3}


def program_of(path: Path) -> Program:
    with GGUFFile.open(path) as file:
        return build_program(file)


@pytest.mark.parametrize("architecture", architecture_names())
def test_the_listing_is_the_golden_one(architecture: str, tmp_path: Path) -> None:
    assert architecture in BUILDERS, f"architecture {architecture} needs a tiny model in this file"
    program = program_of(BUILDERS[architecture](tmp_path / "tiny.gguf"))
    listing = f"{program}\nfused:\n{fuse(program)}"
    file = GOLDEN / f"{architecture}.txt"
    if env.value("EDGEINFER_UPDATE_GOLDEN") == "1":
        file.write_text(listing, encoding="utf-8")
    assert file.is_file(), f"write {file.name} with EDGEINFER_UPDATE_GOLDEN=1 pytest {__file__}"
    assert listing == file.read_text(encoding="utf-8"), "if that was meant: EDGEINFER_UPDATE_GOLDEN=1 pytest tests/model/test_decoder.py, and read the diff"


@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize("architecture", architecture_names())
def test_every_value_is_made_once_before_it_is_used(architecture: str, fused: bool, tmp_path: Path) -> None:
    program = program_of(BUILDERS[architecture](tmp_path / "tiny.gguf"))
    program = fuse(program) if fused else program
    made: set[str] = set()
    per_output = False
    for operation in program.operations:
        per_output = per_output or operation.kind == "select_outputs"
        assert all(value.name in made for value in operation.inputs)
        for value in operation.outputs:
            assert value.name not in made
            assert value.per_output == per_output
            made.add(value.name)
    assert program.logits.name == "logits"
    assert program.logits.width == program.vocabulary
    assert {"hidden", "logits"} <= made
    used = {value.name for operation in program.operations for value in operation.inputs}
    assert made - used == {"logits"}


@pytest.mark.parametrize("architecture", architecture_names())
def test_every_tensor_is_used_once(architecture: str, tmp_path: Path) -> None:
    with GGUFFile.open(BUILDERS[architecture](tmp_path / "tiny.gguf", tied=True)) as file:
        program = build_program(file)
        uses = Counter(weight.name for operation in program.operations for weight in operation.weights)
        assert set(uses) == set(file.tensors)
    assert {name for name, count in uses.items() if count > 1} == {"token_embd.weight"}  # tied: looked up, and the output matrix


def test_stores_say_what_each_layer_keeps(tmp_path: Path) -> None:
    stores = program_of(tiny_gemma3(tmp_path / "tiny.gguf", sliding_window=16)).stores
    assert [store.index for store in stores] == [0, 1, 2, 3, 4, 5]
    assert [(store.group, store.window) for store in stores] == [("paged_window", 16)] * 5 + [("paged", 0)]
    assert {(store.kv_heads, store.key_size, store.value_size) for store in stores} == {(1, 32, 32)}


def test_soft_caps_are_only_where_they_cap(tmp_path: Path) -> None:
    def kinds(name: str, cap: float | None) -> list[str]:
        program = program_of(tiny_gemma3(tmp_path / name, metadata={"gemma3.final_logit_softcapping": cap}))
        return [operation.kind for operation in program.operations]

    assert kinds("none", None)[-1] == kinds("zero", 0.0)[-1] == "linear"
    assert kinds("some", 30.0)[-2:] == ["linear", "softcap"]


@pytest.mark.parametrize(
    ("architecture", "options"),
    [("llama", {}), ("llama", {"biases": True}), ("qwen2", {}), ("gemma3", {}), ("llama", {"weight_format": "Q8_0", "tied": True})],
    ids=str,
)
def test_fusion_keeps_every_bit(architecture: str, options: dict[str, Any], tmp_path: Path) -> None:
    with GGUFFile.open(BUILDERS[architecture](tmp_path / "tiny.gguf", **options)) as file:
        program = build_program(file)
        ids = list(range(40))
        plain, fused = (reference_logits(file, ids, program=each) for each in (program, fuse(program)))
    assert plain.tobytes() == fused.tobytes()


def test_residuals_are_folded_where_nothing_is_between(tmp_path: Path) -> None:
    llama = program_of(tiny_llama(tmp_path / "llama.gguf"))
    folded = [operation for operation in fuse(llama).operations if operation.attributes.get("has_residual")]
    assert [operation.outputs[0].name for operation in folded] == ["y0", "x1", "y1", "x2"]
    assert not any(operation.kind == "add" for operation in fuse(llama).operations)
    gemma3 = program_of(tiny_gemma3(tmp_path / "gemma3.gguf"))
    assert fold_residuals(gemma3) == gemma3  # a norm lies between each product and its sum
    kinds = [operation.kind for operation in fuse(gemma3).operations]
    assert kinds[4:11] == ["linear", "linear", "linear", "rms_norm", "rms_norm", "rope", "rope"]  # those that do not depend on each other, together
    assert fuse(fuse(llama)) == fuse(llama)


def test_a_product_that_is_used_elsewhere_too_is_not_folded(tmp_path: Path) -> None:
    program = program_of(tiny_llama(tmp_path / "llama.gguf", layers=1))
    operations = list(program.operations)
    place = next(index for index, operation in enumerate(operations) if operation.kind == "add")
    product = operations[place - 1].outputs[0]
    used_twice = Operation("add", (product, operations[place].outputs[0]), (), (Value("again", product.width),))
    other = Program("llama", (*operations[: place + 1], used_twice), (), program.vocabulary, program.width, 256, used_twice.outputs[0])
    assert fold_residuals(other) == other
    doubled = Operation("add", (product, product), (), (Value("doubled", product.width),))
    other = Program("llama", (*operations[:place], doubled), (), program.vocabulary, program.width, 256, doubled.outputs[0])
    assert fold_residuals(other) == other


@pytest.mark.parametrize("value", [None, 7, ""])
def test_a_file_without_an_architecture_is_refused(value: Any, tmp_path: Path) -> None:
    path = tiny_llama(tmp_path / "tiny.gguf", metadata={"general.architecture": value})
    with pytest.raises(ModelFileError, match=r"general\.architecture"):
        program_of(path)


def test_an_unknown_architecture_is_refused(tmp_path: Path) -> None:
    path = tiny_llama(tmp_path / "tiny.gguf", metadata={"general.architecture": "hyena"})
    with pytest.raises(UnsupportedModelError, match="'hyena'"):
        program_of(path)


def test_the_file_decides_head_size_and_width(tmp_path: Path) -> None:
    program = program_of(tiny_llama(tmp_path / "tiny.gguf", head_size=32))
    attention = next(operation for operation in program.operations if operation.kind == "attention")
    assert [value.width for value in (*attention.inputs, *attention.outputs)] == [128, 64, 64, 128]
    assert attention.attributes["scale"] == np.float64(1 / np.sqrt(32))


def test_the_model_layer_needs_no_numba() -> None:
    code = "import sys, edgeinfer.model.reference; print(sorted({'numba', 'llvmlite', 'tokenizers', 'jinja2'} & set(sys.modules)))"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=Path(__file__).parents[2])
    assert result.stdout.strip() == "[]"


def test_the_model_layer_imports_only_what_is_below_it() -> None:
    package = Path(build_decoder.__code__.co_filename).parent
    allowed = ("edgeinfer.core", "edgeinfer.model", "kernels_numba.formats")
    for file in sorted(package.glob("*.py")):
        for line in file.read_text(encoding="utf-8").splitlines():
            module = line.split()[1] if line.lstrip().startswith(("from ", "import ")) and len(line.split()) > 1 else ""
            if module.startswith(("edgeinfer", "kernels_numba")):
                assert module.startswith(allowed), f"{file.name} imports {module}"
