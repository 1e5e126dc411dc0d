"""The backend onnx on OpenVINO: it runs every node, its logits are right, and what it cannot is an error. In an environment with its build of ONNX Runtime:
`make test-providers`. The contract suite runs there as well."""

from __future__ import annotations

import importlib.util
import json
import random
import subprocess
import sys
from pathlib import Path

import pytest

from edgeinfer import Engine, SamplingParams
from edgeinfer.backends.onnx.providers import PROVIDERS
from edgeinfer.core.errors import ProviderError
from tests.backends.onnx_graphs import distance, reference
from tests.support.tiny_models import tiny_gemma3, tiny_llama, tiny_qwen2


def _available() -> bool:
    if importlib.util.find_spec("onnxruntime") is None or importlib.util.find_spec("onnx") is None:
        return False
    import onnxruntime

    return "OpenVINOExecutionProvider" in onnxruntime.get_available_providers()


pytestmark = [
    pytest.mark.onnx,
    pytest.mark.skipif(not _available(), reason="needs the OpenVINO provider of ONNX Runtime, in an environment of its own: make test-providers"),
]

K_BLOCKS = {"width": 256, "heads": 8, "feed_forward": 256, "layers": 1}


def _tokens(count: int, seed: int = 0) -> list[int]:
    return random.Random(seed).choices(range(33, 280), k=count)


@pytest.mark.parametrize(
    ("make", "format_name", "sizes"),
    [
        (tiny_llama, "Q4_1", {}), (tiny_qwen2, "Q8_0", {}), (tiny_gemma3, "Q4_0", {}), (tiny_llama, "F16", {}), (tiny_llama, "Q4_K", K_BLOCKS),
        (tiny_llama, "Q6_K", K_BLOCKS),
    ],
)  # fmt: skip
def test_it_runs_every_node_and_is_near_the_reference(make: type, format_name: str, sizes: dict[str, int], tmp_path: Path) -> None:
    path = make(tmp_path / "model.gguf", weight_format=format_name, **sizes)
    tokens = _tokens(60)
    with Engine.load(path, backend="onnx", provider="openvino", minimum_share=1.0, context=96, threads=1, chunk=17) as engine:
        placement = engine.capabilities.placement
        assert placement is not None and placement.share == 1.0 and placement.dialect == "opset21"
        assert "OpenVINOExecutionProvider" in placement.nodes
        assert distance(engine.logits(tokens), reference(path, tokens)) < 0.05


def test_it_answers_as_the_cpu_provider_does(tmp_path: Path) -> None:
    path = tiny_llama(tmp_path / "model.gguf", weight_format="F32")
    prompt, greedy = _tokens(150), SamplingParams(max_tokens=20, temperature=0)
    answers = []
    for provider in ("openvino", "cpu"):
        with Engine.load(path, backend="onnx", provider=provider, context=256, threads=2) as engine:
            answers.append(engine.generate(prompt, greedy).token_ids)
    assert answers[0] == answers[1]


def test_a_dialect_that_it_does_not_take_is_refused_by_name(tmp_path: Path) -> None:
    path = tiny_llama(tmp_path / "model.gguf", weight_format="Q4_1")
    with pytest.raises(ProviderError, match=r"openvino.*dialect cpu"):
        Engine.load(path, backend="onnx", provider="openvino:dialect=cpu", minimum_share=1.0, context=96, threads=1)


@pytest.mark.parametrize(
    ("option", "said"),
    [
        ("device_typ=CPU", r"device_typ is none that edgeinfer knows; it knows device_type, .*Invalid OpenVINO EP option: device_typ$"),
        ("device_type=TOASTER", r"has no device 'TOASTER' on this machine \(device_type=TOASTER\); it offers .*CPU"),
        ("device_type=AUTO", "check its options, device_type=AUTO, or"),
        ("precision=FP7", "Unsupported inference precision.*check its options, precision=FP7"),
        ("num_streams=many", "check its options, num_streams=many"),
    ],
)
def test_an_option_that_it_does_not_take_is_named(tmp_path: Path, capfd: pytest.CaptureFixture[str], option: str, said: str) -> None:
    path = tiny_llama(tmp_path / "model.gguf", weight_format="Q4_1")
    with pytest.raises(ProviderError, match=said):
        Engine.load(path, backend="onnx", provider=f"openvino:{option}", context=96, threads=1)
    assert "onnxruntime" not in capfd.readouterr().err


def test_every_option_in_the_table_is_one_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)  # some name a file
    path = tiny_llama(tmp_path / "model.gguf", weight_format="Q4_1")
    for option in PROVIDERS["openvino"].known_options:
        try:
            Engine.load(path, backend="onnx", provider=f"openvino:{option}=CPU", context=96, threads=1).close()
        except ProviderError as error:
            assert "Invalid OpenVINO EP option" not in str(error)


def test_the_command_line_says_who_ran_it(tmp_path: Path) -> None:
    path = tiny_llama(tmp_path / "model.gguf", weight_format="Q4_1")
    asked = ["run", str(path), "--prompt", "AB", "--backend", "onnx", "--provider", "openvino", "--min-share", "1", "--max-tokens", "3", "--json"]
    run = subprocess.run([sys.executable, "-m", "edgeinfer.cli.main", *asked], capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
    found = json.loads(run.stdout.strip().splitlines()[-1])
    assert found["placement"]["provider"] == "openvino" and found["placement"]["share"] == 1
    assert "provider openvino runs" in run.stderr
