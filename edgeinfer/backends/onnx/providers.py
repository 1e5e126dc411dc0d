"""The execution providers of ONNX Runtime that edgeinfer knows, as a table, and what a user asks of one: `NAME[:key=value,...]`.

A provider gets a graph in the dialect that it takes most of. Where that was measured, `evidence` says so; elsewhere it is what the provider's own
documentation lists, and was never run by us. Nothing is imported here. Called by the command line, the doctor and `provider_search`.
"""

from __future__ import annotations

import platform
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from edgeinfer.core.errors import InvalidRequestError, ProviderError

AUTO = "auto"
DEFAULT_MINIMUM_SHARE = 0.5
"""Of a graph's nodes, that a provider must run itself."""

CPU_PROVIDER = "CPUExecutionProvider"
DEVICES = ("cpu", "gpu", "npu")
OWN_KEYS = ("dialect", "device", "library")
"""Keys that edgeinfer reads itself; all others are the provider's."""

_BUILD = "build ONNX Runtime with {}, no wheel has it"


@dataclass(frozen=True)
class Provider:
    """One line of the table. `modules` are packages that bring it as a plugin, by the names they are imported by."""

    name: str  # what users ask for
    runtime_name: str  # what ONNX Runtime calls it
    dialect: str
    evidence: str
    install: str
    platforms: str
    modules: tuple[str, ...] = ()
    options: Mapping[str, str] = field(default_factory=dict)
    built_in_devices: tuple[str, ...] = ()  # of a provider that is built in and cannot be asked
    thread_option: str | None = None  # its own, for the threads that it may have on the processor
    plugin_platforms: str = ""  # of its plugin, where they are fewer
    known_options: tuple[str, ...] = ()  # its own, where they were looked up; another may be newer, or is misspelt
    one_row: bool = False  # it takes operators of fixed shapes only, so a graph is made for one row of one sequence


PROVIDERS: Mapping[str, Provider] = MappingProxyType(
    {
        provider.name: provider
        for provider in (
            Provider(
                "cpu", CPU_PROVIDER, "cpu", "measured", "pip install 'edgeinfer[onnx]'", "everywhere", built_in_devices=("cpu",),
            ),
            Provider(
                "openvino", "OpenVINOExecutionProvider", "opset21",
                "measured with onnxruntime-openvino 1.24 on a CPU: it runs every node of opset21, and fewer of the other dialects",
                "pip install onnxruntime-openvino, into an environment of its own (it replaces onnxruntime); or, for Intel's devices only, the plugin: "
                "pip install onnxruntime-ep-openvino, beside onnxruntime",
                "Linux and Windows on x86-64", ("onnxruntime_ep_openvino",), thread_option="num_of_threads",
                plugin_platforms="Intel's devices; onnxruntime-openvino, which replaces onnxruntime, runs on other processors too",
                known_options=(
                    "device_type", "device_id", "device_luid", "precision", "num_of_threads", "num_streams", "cache_dir", "load_config", "model_priority",
                    "context", "layout", "reshape_input", "disable_dynamic_shapes", "enable_qdq_optimizer", "enable_causallm", "enable_opencl_throttling",
                ),
            ),
            Provider(
                "qnn", "QNNExecutionProvider", "cpu",
                "measured on the simulator: it takes operators of fixed shapes only, MatMulNBits among them, so a run has one row",
                "pip install onnxruntime-qnn, beside onnxruntime", "Windows and Linux on Snapdragon; a simulator on Linux on x86-64",
                ("onnxruntime_qnn",), {"backend_type": "htp"}, one_row=True,
                known_options=(
                    "backend_type", "backend_path", "device_id", "soc_model", "htp_arch", "htp_performance_mode", "htp_graph_finalization_optimization_mode",
                    "htp_bf16_enable", "enable_htp_fp16_precision", "enable_htp_spill_fill_buffer", "enable_htp_shared_memory_allocator",
                    "enable_vtcm_backup_buffer_sharing", "extended_udma", "offload_graph_io_quantization", "op_packages", "profiling_level",
                    "profiling_file_path", "qnn_context_priority", "qnn_saver_path", "rpc_control_latency", "vtcm_mb", "dump_json_qnn_graph",
                    "json_qnn_graph_dir", "disable_file_mapped_weights", "skip_qnn_version_check",
                ),
            ),
            Provider(
                "dml", "DmlExecutionProvider", "cpu", "never run by us: by its documentation it has MatMulNBits and GroupQueryAttention",
                "pip install onnxruntime-directml, into an environment of its own (it replaces onnxruntime)", "Windows", built_in_devices=("gpu",),
            ),
            Provider(
                "coreml", "CoreMLExecutionProvider", "opset21", "never run by us: by its documentation it takes standard operators",
                "pip install onnxruntime (its wheel for macOS has it)", "macOS", options={"ModelFormat": "MLProgram"},
                built_in_devices=("gpu", "npu"),
            ),
            Provider(
                "webgpu", "WebGpuExecutionProvider", "cpu", "never run by us: by its documentation it has MatMulNBits and GroupQueryAttention",
                "pip install onnxruntime-ep-webgpu, beside onnxruntime", "Linux, macOS and Windows with a graphics processor", ("onnxruntime_ep_webgpu",),
            ),
            Provider(
                "xnnpack", "XnnpackExecutionProvider", "opset21", "never run by us: by its documentation it takes standard operators in float32",
                _BUILD.format("--use_xnnpack"), "Android, iOS and builds of one's own", built_in_devices=("cpu",), thread_option="intra_op_num_threads",
            ),
            Provider(
                "acl", "ACLExecutionProvider", "opset21", "never run by us: by its documentation it takes standard operators in float32",
                _BUILD.format("--use_acl (an older version: newer ones do not list it)"), "Linux on arm64", built_in_devices=("cpu",),
            ),
        )
    }
)  # fmt: skip

_SIMULATOR = MappingProxyType({"soc_model": "60", "htp_arch": "75"})
"""Of QNN on x86-64: without a chip there is none to ask, and it refuses to start."""


RUNTIME_SUFFIX = "executionprovider"
_NAMES = {
    spelt: entry.name
    for entry in PROVIDERS.values()
    for spelt in (entry.name, entry.runtime_name.lower(), entry.runtime_name.lower().removesuffix(RUNTIME_SUFFIX))
}
"""How users may write the names of the table: as it has them or as ONNX Runtime does, in lower case."""


@dataclass(frozen=True)
class ProviderRequest:
    """What a user asked for: a name, edgeinfer's own keys, and options of the provider."""

    name: str
    dialect: str | None = None
    device: str | None = None
    library: str | None = None
    options: Mapping[str, str] = field(default_factory=dict)


def parse_provider(text: str) -> ProviderRequest:
    """`"openvino:device=gpu,num_streams=2"` -> a request. Names are not looked up. Raises InvalidRequestError for what is not of that form."""
    name, colon, rest = text.partition(":")
    form = "expected NAME or NAME:key=value,..., such as openvino:device=cpu,num_streams=1"
    if not name.strip() or name != name.strip() or (colon and not rest.strip()):
        raise InvalidRequestError(f"provider is {text!r}; {form}")
    name = _NAMES.get(name.lower(), name)
    options: dict[str, str] = {}
    for part in rest.split(",") if colon else []:
        key, equals, value = part.partition("=")
        key, value = key.strip(), value.strip()
        if not equals or not key or not value:
            raise InvalidRequestError(f"provider is {text!r}, in which {part!r} is no key=value; {form}")
        if key in options:
            raise InvalidRequestError(f"provider is {text!r}, which gives {key!r} twice")
        options[key] = value
    own = {key: options.pop(key, None) for key in OWN_KEYS}
    if own["device"] is not None and own["device"] not in DEVICES:
        raise InvalidRequestError(f"the provider's device is {own['device']!r}; it must be one of {', '.join(DEVICES)}")
    if name in (AUTO, "cpu"):
        given = [*options, *(key for key in ("device", "library") if own[key] is not None), *(["dialect"] if name == AUTO and own["dialect"] else [])]
        if given:
            raise InvalidRequestError(f"provider is {text!r}, but {name} has no option {given[0]!r}{' beside dialect' if name == 'cpu' else ''}; leave it out")
    return ProviderRequest(name, own["dialect"], own["device"], own["library"], options)


def checked_share(share: float | None, provider: str | None) -> float:
    """The share of nodes that a provider must run. Raises InvalidRequestError for one that is none, or that is for no provider."""
    if share is None:
        return DEFAULT_MINIMUM_SHARE
    if not 0 <= share <= 1:
        raise InvalidRequestError(f"the minimum share is {share}; it must be between 0 and 1")
    if provider is None:
        raise InvalidRequestError("a minimum share is given, but no provider that should run it; name one (--provider), or leave it out")
    return share


def check_provider(provider: str | None, share: float | None) -> None:
    """Raises InvalidRequestError as `parse_provider` and `checked_share` do."""
    if provider is not None:
        parse_provider(provider)
    checked_share(share, provider)


def default_options(provider: Provider) -> dict[str, str]:
    """What the provider is given where the user says nothing else."""
    simulated = provider.name == "qnn" and platform.machine().lower() in ("x86_64", "amd64")
    return {**provider.options, **(_SIMULATOR if simulated else {})}


def unknown_options(name: str, options: Mapping[str, str]) -> list[str]:
    """Those of a provider's options that the table does not know; none where it knows no options of the provider at all."""
    known = PROVIDERS[name].known_options if name in PROVIDERS else ()
    return [key for key in options if key not in known] if known else []


def unknown_provider(name: str) -> ProviderError:
    return ProviderError(
        f"there is no provider named {name!r}; choose {AUTO}, {', '.join(PROVIDERS)}, the name of another one that this ONNX Runtime has "
        "(`edgeinfer doctor` lists them), or give the library of a plugin: NAME:library=PATH"
    )
