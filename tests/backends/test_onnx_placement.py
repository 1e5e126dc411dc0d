"""Who runs the nodes of a graph: how they are counted, what a session is made with, and providers that drop out, refuse or run too little."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from edgeinfer.backends.base import Placement
from edgeinfer.backends.onnx.placement import placement_of, placement_settings, require_share
from edgeinfer.backends.onnx.provider_search import CPU_TARGET, Target
from edgeinfer.backends.onnx.session import MadeSession, make_session
from edgeinfer.core.errors import EdgeInferError, ProviderError
from edgeinfer.gguf.reader import GGUFFile
from edgeinfer.model import build_program, fuse
from tests.backends.onnx_fakes import Session, TellingSession, runtime
from tests.support.tiny_models import tiny_llama

OPENVINO = Target("openvino", "OpenVINOExecutionProvider", "opset21", "CPU", {})


def test_nodes_are_counted_by_who_runs_them(monkeypatch: pytest.MonkeyPatch) -> None:
    library = runtime()
    assert placement_settings(library, OPENVINO) == {"session.record_ep_graph_assignment_info": "1"}
    monkeypatch.setattr(TellingSession, "counts", {"OpenVINOExecutionProvider": 57, "CPUExecutionProvider": 4})
    found = placement_of(library, TellingSession("", None, enable_fallback=0), OPENVINO, 61)
    assert (found.provider_nodes, found.total) == (57, 61) and found.share == 57 / 61
    assert "runs 57 of 61 nodes (OpenVINOExecutionProvider 57, CPUExecutionProvider 4) on CPU in the dialect opset21" in str(found)
    require_share(found, 0.9, {})
    with pytest.raises(ProviderError, match=r"takes only 57 of 61 nodes \(93.4%\).*at least 95% was asked for; accept less \(--min-share 0.934"):
        require_share(found, 0.95, {"device_type": "CPU"})


def test_a_provider_that_runs_nothing_is_refused_whatever_the_share() -> None:
    nothing = Placement("qnn", "opset21", "NPU", {"CPUExecutionProvider": 61}, 0)
    with pytest.raises(ProviderError, match="takes only 0 of 61 nodes.*the dialect that it is known to take \\(qnn:dialect=cpu\\)"):
        require_share(nothing, 0.0, {})
    with pytest.raises(ProviderError, match="takes only 0 of 61 nodes.*; check its options, backend_type=htp,soc_model=60, or choose another"):
        require_share(nothing, 0.0, {"backend_type": "htp", "soc_model": "60"})


def test_an_old_library_that_cannot_tell_must_give_the_provider_everything() -> None:
    library = runtime(InferenceSession=Session)
    assert placement_settings(library, OPENVINO) == {"session.disable_cpu_ep_fallback": "1"}
    assert placement_settings(library, CPU_TARGET) == {}
    assert placement_of(library, Session("", None, enable_fallback=0), OPENVINO, 61).share == 1.0


class _Options:
    def __init__(self) -> None:
        self.entries: dict[str, str] = {}

    def add_session_config_entry(self, key: str, value: str) -> None:
        self.entries[key] = value

    def add_provider_for_devices(self, devices: list[Any], options: dict[str, str]) -> None:
        self.devices, self.own = devices, options


def _session(library: Any, target: Target, tmp_path: Path) -> MadeSession:
    with GGUFFile.open(tiny_llama(tmp_path / "model.gguf", weight_format="Q8_0")) as file:
        return make_session(library, fuse(build_program(file)), file, 64, 3, target)


@pytest.mark.onnx
def test_a_session_gets_the_provider_its_options_and_the_threads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    library = runtime(SessionOptions=_Options)
    monkeypatch.setattr(TellingSession, "counts", {"OpenVINOExecutionProvider": 9})
    target = Target("openvino", "OpenVINOExecutionProvider", "opset21", "CPU", {"device_type": "CPU"}, thread_option="num_of_threads")
    made = _session(library, target, tmp_path)
    own = {"num_of_threads": "3", "device_type": "CPU"}
    assert made.session.given == [("OpenVINOExecutionProvider", own), "CPUExecutionProvider"] and made.placement.provider_nodes == 9
    old = _session(runtime(SessionOptions=_Options, InferenceSession=Session), target, tmp_path)
    assert old.session.given == [("OpenVINOExecutionProvider", own)], "an old library refuses a CPU provider that may take nothing"
    assert old.session.options.entries == {"session.disable_cpu_ep_fallback": "1"}
    plugin = Target("mine", "mine", "opset21", "an NPU", {"a": "b"}, devices=("device",))
    made = _session(library, plugin, tmp_path)
    assert made.session.options.devices == ["device"] and made.session.options.own == {"a": "b"} and made.session.given == ()


@pytest.mark.onnx
def test_a_provider_that_drops_out_or_refuses_is_an_error(tmp_path: Path) -> None:
    class Dropping(TellingSession):
        def get_providers(self) -> list[str]:
            return ["CPUExecutionProvider"]

    class Refusing(TellingSession):
        def __init__(self, *arguments: Any, **options: Any) -> None:
            raise RuntimeError("[ONNXRuntimeError] : 1 : FAIL : /on/state.cc:10 std::shared_ptr<A> b::c(const d&, e) Invalid\n option")

    with pytest.raises(ProviderError, match="could not load the provider openvino; repair its package"):
        _session(runtime(SessionOptions=_Options, InferenceSession=Dropping), OPENVINO, tmp_path)
    refused = Target("openvino", "OpenVINOExecutionProvider", "opset23", "CPU", {"num_streams": "b"})
    with pytest.raises(
        ProviderError, match=r"refuses the graph in the dialect opset23 with the options num_streams=b; it is known to take opset21: Invalid option$"
    ):
        _session(runtime(SessionOptions=_Options, InferenceSession=Refusing), refused, tmp_path)
    with pytest.raises(EdgeInferError, match="refuses the graph in the dialect cpu: Invalid option") as caught:
        _session(runtime(SessionOptions=_Options, InferenceSession=Refusing), CPU_TARGET, tmp_path)
    assert not isinstance(caught.value, ProviderError)


LOG = """\x1b[1;31m2026-01-02 03:04:05.678 [E:onnxruntime:Default, provider_bridge.cc:2310 Create] /on/factory.cc:101 static A b::c(const d&) \
[ERROR] [Own] Only FP32 is supported.

\x1b[m
\x1b[0;93m2026-01-02 03:04:05.679 [W:onnxruntime:Default, state.cc:1066 Make] Failed to create it. Please refer to a page.\x1b[m
"""


@pytest.mark.onnx
@pytest.mark.parametrize(("options", "said"), [({"precision": "FP7"}, ""), ({"prec": "FP7"}, r" \(prec is none that edgeinfer knows; it knows device_type")])
def test_the_reason_of_a_provider_that_drops_out_is_taken_from_the_log(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], options: dict[str, str], said: str
) -> None:
    class Dropping(TellingSession):
        def __init__(self, *arguments: Any, **more: Any) -> None:
            super().__init__(*arguments, **more)
            os.write(2, LOG.encode() + b"of another library\n")

        def get_providers(self) -> list[str]:
            return ["CPUExecutionProvider"]

    target = replace(OPENVINO, options=options)
    given = ",".join("=".join(item) for item in options.items())
    with pytest.raises(ProviderError, match=f"could not load the provider openvino: Only FP32 is supported; check its options, {given}{said}"):
        _session(runtime(SessionOptions=_Options, InferenceSession=Dropping), target, tmp_path)
    assert capfd.readouterr().err == "of another library\n"
    assert os.write(2, b"still there") and capfd.readouterr().err == "still there"


@pytest.mark.onnx
def test_the_log_of_a_session_that_is_made_is_passed_on(tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    class Talking(TellingSession):
        def __init__(self, *arguments: Any, **more: Any) -> None:
            super().__init__(*arguments, **more)
            os.write(2, LOG.encode())

    monkeypatch.setattr(TellingSession, "counts", {"OpenVINOExecutionProvider": 9})
    made = _session(runtime(SessionOptions=_Options, InferenceSession=Talking), replace(OPENVINO, options={"new": "1"}), tmp_path)
    assert capfd.readouterr().err == LOG
    assert any("was given new, which edgeinfer does not know as an option" in warning for warning in made.warnings)


@pytest.mark.onnx
def test_minima_are_rounded_for_the_cpu_provider_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Codes of 8 bits with zero points are fast there; on QNN's simulator a token took a fifth longer with them, and they are twice the bytes."""
    import onnx

    class Reading(TellingSession):
        def __init__(self, model: Any, options: Any, providers: Any = (), enable_fallback: int = 1) -> None:
            super().__init__(model, options, providers, enable_fallback)
            nodes = onnx.load(model, load_external_data=False).graph.node
            self.bits = {attribute.i for node in nodes for attribute in node.attribute if attribute.name == "bits"}

    monkeypatch.setattr(TellingSession, "counts", {"mine": 9})
    library = runtime(SessionOptions=_Options, InferenceSession=Reading)
    with GGUFFile.open(tiny_llama(tmp_path / "model.gguf", weight_format="Q4_1")) as file:
        program = fuse(build_program(file))
        targets = (CPU_TARGET, Target("mine", "mine", "cpu", "an NPU", {}, devices=("device",)))
        found = [make_session(library, program, file, 64, 1, target).session.bits for target in targets]
    assert found == [{8}, {4}]
