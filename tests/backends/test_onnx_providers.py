"""Execution providers: what a user writes, where providers are looked for, who runs the nodes, and every error. The real ONNX Runtime runs what it can; a
provider that it does not have here, or an older version, is played by an object with the few functions that are asked."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from edgeinfer import Engine
from edgeinfer.backends.base import BackendOptions, Placement
from edgeinfer.backends.load import load_backend
from edgeinfer.backends.onnx import backend as onnx_backend
from edgeinfer.backends.onnx import provider_search
from edgeinfer.backends.onnx.dialects import DIALECTS
from edgeinfer.backends.onnx.provider_report import provider_findings
from edgeinfer.backends.onnx.provider_search import CPU_TARGET, MissingProviderError, Target, automatic_targets, find, target_of
from edgeinfer.backends.onnx.providers import PROVIDERS, ProviderRequest, checked_share, parse_provider
from edgeinfer.backends.onnx.session import MadeSession
from edgeinfer.core.errors import BackendUnavailableError, EdgeInferError, InvalidRequestError, ProviderError, UnknownChoiceError
from edgeinfer.core.steps import OutputKind
from tests.backends.onnx_fakes import plugin_device, runtime
from tests.backends.onnx_graphs import distance, reference
from tests.backends.support import Driver, Rows
from tests.support.tiny_models import tiny_gemma3, tiny_llama, tiny_qwen2

TOKENS = list(range(40, 100))


@pytest.fixture
def unregistered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(provider_search, "_registered", {})


# What a user writes


def test_a_request_is_a_name_with_options() -> None:
    assert parse_provider("openvino") == ProviderRequest("openvino")
    assert parse_provider("openvino:device=gpu, num_streams=2,cache_dir=C:\\a=b") == ProviderRequest(
        "openvino", device="gpu", options={"num_streams": "2", "cache_dir": "C:\\a=b"}
    )
    for name in ("QNN", "QNNExecutionProvider", "qnn"):
        assert parse_provider(f"{name}:backend_type=cpu") == ProviderRequest("qnn", options={"backend_type": "cpu"})
    assert parse_provider("CPU").name == parse_provider("CPUExecutionProvider").name == "cpu" and parse_provider("Mine").name == "Mine"
    assert parse_provider("mine:library=/a/b.so,dialect=opset23") == ProviderRequest("mine", dialect="opset23", library="/a/b.so")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "expected NAME"), ("openvino:", "expected NAME"), (":a=b", "expected NAME"), (" cpu", "expected NAME"), ("openvino:a", "'a' is no key=value"),
        ("openvino:a=", "no key=value"), ("openvino:=b", "no key=value"), ("openvino:a=1,,b=2", "'' is no key=value"), ("openvino:a=1,a=2", "gives 'a' twice"),
        ("openvino:device=tpu", "must be one of cpu, gpu, npu"), ("cpu:threads=2", "cpu has no option 'threads'"), ("cpu:device=gpu", "no option 'device'"),
        ("auto:dialect=cpu", "auto has no option 'dialect'"), ("auto:a=b", "auto has no option 'a'"),
    ],
)  # fmt: skip
def test_a_bad_request_says_what_is_wrong(text: str, said: str) -> None:
    with pytest.raises(InvalidRequestError, match=said):
        parse_provider(text)


def test_shares_are_between_0_and_1_and_of_a_provider() -> None:
    assert checked_share(None, None) == checked_share(None, "cpu") == 0.5 and checked_share(0.0, "cpu") == 0.0
    for share in (-0.1, 1.1, float("nan")):
        with pytest.raises(InvalidRequestError, match="between 0 and 1"):
            checked_share(share, "cpu")
    with pytest.raises(InvalidRequestError, match="no provider"):
        checked_share(0.5, None)


def test_the_table_names_dialects_that_there_are() -> None:
    assert all(entry.dialect in DIALECTS and entry.install and entry.platforms and entry.evidence for entry in PROVIDERS.values())
    assert {"cpu", "openvino", "qnn", "xnnpack", "coreml", "dml", "acl"} <= set(PROVIDERS)


@pytest.mark.parametrize("backend", ["numba", "fake", "auto", "llamacpp"])
def test_only_the_onnx_backend_has_providers(backend: str, tmp_path: Path) -> None:
    path = tiny_llama(tmp_path / "model.gguf")
    with pytest.raises(InvalidRequestError, match=f"only the backend onnx has providers, not {backend}"):
        Engine.load(path, backend=backend, provider="cpu")
    with pytest.raises(InvalidRequestError, match="has no providers; leave it out"):
        Engine.load(path, backend=backend, minimum_share=0.2)


# Where providers are looked for


def test_what_is_not_here_is_told_with_what_to_install() -> None:
    with pytest.raises(
        MissingProviderError, match=r"openvino is not in this environment \(ONNX Runtime 1.0 in /environment\).*pip install onnxruntime-openvino.*repl"
    ):
        find(runtime(), "openvino")
    with pytest.raises(MissingProviderError, match="CUDA is not in this environment"):
        find(runtime(), "CUDA")
    with pytest.raises(ProviderError, match="no provider named 'nonsense'; choose auto, cpu, openvino"):
        find(runtime(), "nonsense")
    assert issubclass(ProviderError, UnknownChoiceError) and ProviderError.exit_code == 2


def test_a_built_in_provider_gets_its_dialect_device_and_threads() -> None:
    library = runtime(("OpenVINOExecutionProvider", "CPUExecutionProvider"))
    target = target_of(library, ProviderRequest("openvino", options={"num_streams": "1"}))
    assert (target.runtime_name, target.dialect, target.device) == ("OpenVINOExecutionProvider", "opset21", "CPU")
    assert target.options == {"device_type": "CPU", "num_streams": "1"} and target.thread_option == "num_of_threads"
    gpu = target_of(library, ProviderRequest("openvino", device="gpu", dialect="cpu"))
    assert gpu.options == {"device_type": "GPU"} and gpu.dialect == "cpu" and gpu.thread_option is None
    with pytest.raises(ProviderError, match="cannot tell the provider coreml which device"):
        target_of(runtime(("CoreMLExecutionProvider",)), ProviderRequest("coreml", device="npu"))
    with pytest.raises(ProviderError, match=r"no device of the kind 'npu'.*it offers cpu \(CPU\), gpu \(GPU.0\)"):
        target_of(library, ProviderRequest("openvino", device="npu"))


def test_any_provider_of_onnx_runtime_goes_by_its_name() -> None:
    library = runtime(("TensorrtExecutionProvider", "CPUExecutionProvider"))
    for name in ("tensorrt", "TensorrtExecutionProvider"):
        assert target_of(library, ProviderRequest(name)).runtime_name == "TensorrtExecutionProvider"


def test_a_plugin_is_registered_once_and_asked_for_its_devices(tmp_path: Path, unregistered: None) -> None:
    calls = []
    plugin = tmp_path / "plugin.so"
    plugin.touch()
    library = runtime(plugin_devices=(plugin_device("CPU"), plugin_device("NPU")))
    register = library.register_execution_provider_library
    library.register_execution_provider_library = lambda name, path: (calls.append((name, path)), register(name, path))
    request = parse_provider(f"mine:library={plugin},a=b")
    target = target_of(library, request)
    assert target.device == "a NPU" and [device.ep_vendor for device in target.devices] == ["Maker"] and target.options == {"a": "b"}
    assert target_of(library, parse_provider(f"mine:library={plugin},device=cpu")).device == "a CPU"
    assert calls == [("mine", str(plugin))]
    with pytest.raises(ProviderError, match="was registered from"):
        target_of(library, parse_provider("mine:library=/another.so"))


def test_a_plugin_of_a_package_is_found(tmp_path: Path, unregistered: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(tmp_path))
    plugin = tmp_path / "qnn.so"
    plugin.touch()
    (tmp_path / "onnxruntime_qnn.py").write_text(f"def get_library_path():\n    return {str(plugin)!r}\n")
    monkeypatch.delitem(sys.modules, "onnxruntime_qnn", raising=False)
    library = runtime(("CPUExecutionProvider", "QNNExecutionProvider"), plugin_devices=(plugin_device("NPU"),))
    library.get_available_providers = lambda: ["CPUExecutionProvider"]
    target = target_of(library, ProviderRequest("qnn"))
    assert target.dialect == "cpu" and target.options["backend_type"] == "htp" and len(target.devices) == 1
    library.get_available_providers = lambda: ["CPUExecutionProvider", "QNNExecutionProvider"]  # as ONNX Runtime lists it once it is registered
    assert len(target_of(library, ProviderRequest("qnn")).devices) == 1
    monkeypatch.setattr(provider_search, "_registered", {})
    library.get_available_providers = lambda: ["CPUExecutionProvider"]
    library.get_ep_devices = list
    with pytest.raises(ProviderError, match="has no device on this machine.*Snapdragon"):
        target_of(library, ProviderRequest("qnn"))


def test_a_broken_plugin_is_told(tmp_path: Path, unregistered: None, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ProviderError, match="there is no plugin"):
        target_of(runtime(), parse_provider("mine:library=/nowhere.so"))
    text = tmp_path / "text.so"
    text.write_text("no library")
    old = runtime()
    del old.register_execution_provider_library
    with pytest.raises(ProviderError, match="takes no plugins"):
        target_of(old, parse_provider(f"mine:library={text}"))
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "onnxruntime_ep_webgpu.py").write_text("")
    with pytest.raises(ProviderError, match="the package onnxruntime_ep_webgpu cannot be used"):
        target_of(runtime(), ProviderRequest("webgpu"))


@pytest.mark.onnx
def test_the_real_library_refuses_what_is_no_plugin(tmp_path: Path, unregistered: None) -> None:
    import onnxruntime

    text = tmp_path / "text.so"
    text.write_text("no library")
    with pytest.raises(ProviderError, match="cannot be registered as a provider"):
        target_of(onnxruntime, parse_provider(f"mine:library={text}"))


# auto


def test_auto_takes_accelerators_first_and_no_other_provider_for_the_processor() -> None:
    library = runtime(("OpenVINOExecutionProvider", "CoreMLExecutionProvider", "XnnpackExecutionProvider", "CPUExecutionProvider"))
    targets = automatic_targets(library)
    assert targets[0].options["device_type"] == "GPU" and targets[1].device == "this machine"
    assert [target.name for target in targets] == ["openvino", "coreml", "cpu"]
    assert "GPU" in targets[0].reason and "xnnpack offers CPU" in targets[-1].reason
    alone = automatic_targets(runtime())
    assert len(alone) == 1 and alone[0].is_cpu and "no provider was found that offers a GPU or an NPU" in alone[0].reason


def _made(target: Target, own: int, total: int = 10) -> MadeSession:
    placement = Placement(target.name, target.dialect, target.device, {"It": own, "CPUExecutionProvider": total - own}, own, target.reason)
    return MadeSession(None, placement, ())


def test_auto_passes_over_what_refuses_or_runs_too_little_and_says_so() -> None:
    fast, small = Target("fast", "Fast", "cpu", "a GPU", {}, reason="it has a GPU"), Target("small", "Small", "cpu", "an NPU", {}, reason="it has an NPU")

    def make(target: Target) -> MadeSession:
        if target.name == "fast":
            raise ProviderError("it refuses the graph")
        return _made(target, {"small": 2, "cpu": 10}[target.name])

    last = Target(**{**CPU_TARGET.__dict__, "reason": "nothing better runs it"})
    found = onnx_backend.first_that_runs([fast, small, last], 0.5, make).placement
    assert found.provider == "cpu" and "not fast: it refuses" in found.reason and "not small: the provider small takes only 2 of 10" in found.reason
    assert str(found).startswith("provider auto is cpu: nothing better runs it; not fast")
    assert onnx_backend.first_that_runs([fast, small, last], 0.2, make).placement.provider == "small"
    with pytest.raises(ProviderError, match="refuses the graph"):
        onnx_backend.first_that_runs([fast], 0.5, make)


@pytest.mark.onnx
def test_auto_runs_and_says_what_it_took(tmp_path: Path) -> None:
    with Engine.load(tiny_llama(tmp_path / "model.gguf"), backend="onnx", context=96, threads=1, provider="auto") as engine:
        placement = engine.capabilities.placement
        assert placement is not None and placement.reason and placement.share >= 0.5 and "provider auto is" in engine.capabilities.description
        json.dumps(placement.to_json(), allow_nan=False)


# A provider that takes fixed shapes only


@pytest.mark.onnx
@pytest.mark.parametrize("dialect", ["cpu", "opset21"])
def test_a_graph_for_one_row_gives_what_one_for_many_gives(dialect: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tiny_gemma3(tmp_path / "model.gguf", weight_format="Q4_0")
    options = BackendOptions(context=96, threads=1, maximum_step_rows=64, maximum_sequences=4, provider=f"cpu:dialect={dialect}")
    found = []
    for one_row in (False, True):
        fixed = Target("cpu", "CPUExecutionProvider", dialect, "CPU", {}, one_row=one_row)
        monkeypatch.setattr(onnx_backend, "target_of", lambda library, request, fixed=fixed: fixed)
        backend = load_backend("onnx", path, options)
        assert any("token by token" in warning for warning in backend.capabilities.warnings) == one_row
        driver = Driver(backend)
        driver.run(Rows(1, 0, TOKENS[:9], outputs=0))
        parts = [Rows(2, 0, TOKENS[:7], outputs=2), Rows(1, 9, [77]), Rows(3, 0, TOKENS[7:12], outputs=1, kind=OutputKind.HIDDEN)]
        found.append(driver.run(*parts))
        driver.release(1, 2, 3)
        if one_row:
            assert all(entry.shape[1] == 1 for entry in backend._session.get_inputs() if entry.name == "embedded")  # type: ignore[attr-defined]
            assert len(driver.run(Rows(4, 0, TOKENS, outputs=60))[0]) == 60
        backend.close()
    assert all(one.shape == many.shape and distance(one, many) < 0.02 for many, one in zip(*found, strict=True))


def test_qnn_is_such_a_provider(tmp_path: Path, unregistered: None) -> None:
    plugin = tmp_path / "qnn.so"
    plugin.touch()
    assert target_of(runtime(plugin_devices=(plugin_device("NPU"),)), ProviderRequest("qnn", library=str(plugin))).one_row
    assert not CPU_TARGET.one_row and not target_of(runtime(("OpenVINOExecutionProvider",)), ProviderRequest("openvino")).one_row


# The standard dialects behind the contract (test_contract.py runs all of it over them)


@pytest.mark.onnx
@pytest.mark.parametrize("dialect", ["opset21", "opset23"])
@pytest.mark.parametrize("make", [tiny_llama, tiny_qwen2, tiny_gemma3])
def test_standard_dialects_are_near_the_reference(make: Callable[..., Path], dialect: str, tmp_path: Path) -> None:
    path = make(tmp_path / "model.gguf", weight_format="Q4_1")
    with Engine.load(path, backend="onnx", context=96, threads=1, chunk=17, provider=f"cpu:dialect={dialect}") as engine:
        assert distance(engine.logits(TOKENS), reference(path, TOKENS)) < 0.05
        assert engine.capabilities.placement is not None and engine.capabilities.placement.dialect == dialect


@pytest.mark.onnx
def test_a_sequence_that_goes_back_is_cut_off(tmp_path: Path) -> None:
    options = BackendOptions(context=96, threads=1, maximum_step_rows=64, maximum_sequences=2, provider="cpu:dialect=opset21")
    backend = load_backend("onnx", tiny_llama(tmp_path / "model.gguf"), options)
    driver = Driver(backend)
    expected = driver.whole(1, [*TOKENS[:20], 77])[-1:]
    driver.run(Rows(2, 0, TOKENS[:40], outputs=0))
    assert distance(driver.run(Rows(2, 20, [77]))[0], expected) < 1e-4
    with pytest.raises(InvalidRequestError, match="holds 21 tokens"):
        driver.run(Rows(2, 30, [77]))
    assert np.array_equal(driver.run(Rows(2, 0, TOKENS[:5]))[0], driver.whole(3, TOKENS[:5]))
    backend.close()


@pytest.mark.onnx
def test_providers_and_dialects_that_there_are_not_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tiny_llama(tmp_path / "model.gguf")
    with pytest.raises(UnknownChoiceError, match="no ONNX dialect named 'opset99'"):
        Engine.load(path, backend="onnx", provider="cpu:dialect=opset99")
    with pytest.raises(InvalidRequestError, match="between 0 and 1"):
        Engine.load(path, backend="onnx", provider="cpu", minimum_share=2)
    with pytest.raises(ProviderError, match="no provider named 'nonsense'"):
        Engine.load(path, backend="onnx", provider="nonsense")
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "nowhere"))
    with pytest.raises(EdgeInferError, match="TMPDIR.*which the dialect opset21 needs"):
        Engine.load(path, backend="onnx", context=96, threads=1, provider="cpu:dialect=opset21")


# The faces


@pytest.mark.onnx
def test_the_doctor_lists_what_is_here_and_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    found = provider_findings()
    assert found["cpu"].startswith("found (built in), devices: cpu") and set(PROVIDERS) <= set(found)
    assert all(text.startswith("found") or "to have it:" in text or "does not work" in text for text in found.values())

    def without() -> None:
        raise BackendUnavailableError("none")

    monkeypatch.setattr("edgeinfer.backends.onnx.provider_report.require_onnxruntime", without)
    assert "to have it: pip install 'edgeinfer[onnx]'" in provider_findings()["cpu"]


def test_comparing_backends_wants_the_one_with_providers_among_them() -> None:
    from edgeinfer.benchmark.rounds import BenchmarkOptions
    from edgeinfer.verify.backends import BackendsOptions

    for make in (lambda: BenchmarkOptions((1,), provider="cpu"), lambda: BackendsOptions(("numba",), provider="cpu")):
        with pytest.raises(InvalidRequestError, match="the backend onnx, which alone has some, is not among the backends"):
            make()


@pytest.mark.onnx
def test_bench_runs_the_provider_and_says_so(tmp_path: Path) -> None:
    from edgeinfer.benchmark.peers.ours import EdgeInferRunner
    from edgeinfer.benchmark.peers.runner import Start

    path = str(tiny_llama(tmp_path / "model.gguf"))
    runner = EdgeInferRunner(Start("edgeinfer-onnx", path, 1, 96, 1, 96, {"provider": "cpu:dialect=opset21", "minimum_share": None}))
    assert "dialect opset21" in runner.describe()["details"] and runner.decode([TOKENS[:20]], 3) > 0
