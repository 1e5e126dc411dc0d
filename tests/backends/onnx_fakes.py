"""An ONNX Runtime with the few functions that are asked of it, for providers and versions that are not here."""

from __future__ import annotations

import types
from typing import Any, ClassVar


class Session:
    """A session as a library of `runtime` makes it."""

    def __init__(self, model: object, options: Any, providers: Any = (), enable_fallback: int = 1) -> None:
        assert enable_fallback == 0, "ONNX Runtime would go to another provider by itself"
        self.providers = [provider if isinstance(provider, str) else provider[0] for provider in providers]
        self.options = options
        self.given = providers

    def get_providers(self) -> list[str]:
        return self.providers


class TellingSession(Session):
    counts: ClassVar[dict[str, int]] = {}

    def get_provider_graph_assignment_info(self) -> list[Any]:
        return [types.SimpleNamespace(ep_name=name, get_nodes=lambda count=count: [None] * count) for name, count in self.counts.items()]


def runtime(available: tuple[str, ...] = ("CPUExecutionProvider",), plugin_devices: tuple[Any, ...] = (), **more: Any) -> Any:
    """An ONNX Runtime with some providers built in, and a plugin that offers devices once it is registered."""
    registered: list[Any] = []
    fields: dict[str, Any] = {
        "__version__": "1.0", "__file__": "/environment/onnxruntime/__init__.py", "InferenceSession": TellingSession,
        "get_available_providers": lambda: list(available), "get_all_providers": lambda: [*available, "CUDAExecutionProvider"],
        "get_ep_devices": lambda: list(registered), "register_execution_provider_library": lambda name, path: registered.extend(plugin_devices),
        "capi": types.SimpleNamespace(_pybind_state=types.SimpleNamespace(get_available_openvino_device_ids=lambda: ["GPU.0", "CPU"])),
    }  # fmt: skip
    return types.SimpleNamespace(**{**fields, **more})


def plugin_device(kind: str, name: str = "MineExecutionProvider") -> Any:
    return types.SimpleNamespace(
        ep_name=name, ep_vendor="Maker", device=types.SimpleNamespace(type=f"OrtHardwareDeviceType.{kind}", vendor="", metadata={"Description": f"a {kind}"})
    )
