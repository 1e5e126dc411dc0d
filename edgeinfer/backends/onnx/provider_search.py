"""Which execution providers can be had on this machine, and a request turned into the target of a session. Called by the backend and by the doctor.

A provider is built into ONNX Runtime, or comes as the library of a plugin that is registered first. A plugin's library stays registered for the life of
the process, because ONNX Runtime may not unload it while a session lives.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from edgeinfer.backends.onnx.providers import CPU_PROVIDER, PROVIDERS, RUNTIME_SUFFIX, Provider, ProviderRequest, default_options, unknown_provider
from edgeinfer.core.errors import ProviderError
from edgeinfer.core.printable import printable

BUILT_IN = "built in"
_ACCELERATORS = ("npu", "gpu")
OTHER_DIALECT = "opset21"  # for a provider that is not in the table: any takes standard operators

_registered: dict[str, tuple[str, tuple[Any, ...]]] = {}  # ONNX Runtime's name -> library, its devices
_lock = threading.Lock()


class MissingProviderError(ProviderError):
    """A provider that is known, but is not in this environment. The message says how to have it."""


@dataclass(frozen=True)
class Device:
    """A device that a provider offers: cpu, gpu or npu, what it is, and ONNX Runtime's record of it where it is a plugin's."""

    kind: str
    description: str
    record: Any = None


@dataclass(frozen=True)
class Found:
    """A provider that this ONNX Runtime has. `origin`: built in, or the plugin's library."""

    name: str
    runtime_name: str
    origin: str
    devices: tuple[Device, ...]
    entry: Provider | None


@dataclass(frozen=True)
class Target:
    """What a session is made for. `devices` are those of a plugin; a provider that is built in has none here. `reason` is for `auto`."""

    name: str
    runtime_name: str
    dialect: str
    device: str  # for a person
    options: Mapping[str, str]
    devices: tuple[Any, ...] = ()
    reason: str = ""
    thread_option: str | None = None  # the provider's own, where it is to be told how many threads it may have
    one_row: bool = False  # a run has one row of one sequence

    @property
    def is_cpu(self) -> bool:
        return self.runtime_name == CPU_PROVIDER


CPU_TARGET = Target("cpu", CPU_PROVIDER, "cpu", "CPU", {})


def find(library: Any, name: str, plugin: str | None = None) -> Found:
    """The provider of a name with its devices; `plugin` is the path of a plugin's library.

    Raises ProviderError for a name that there is not, one that is not installed, and a plugin that cannot be registered.
    """
    entry = PROVIDERS.get(name)
    if plugin is not None:
        runtime_name = entry.runtime_name if entry is not None else name
        return Found(name, runtime_name, plugin, _plugin_devices(library, runtime_name, plugin), entry)
    runtime_name = entry.runtime_name if entry is not None else _runtime_name(library, name)
    if runtime_name in _registered:  # ONNX Runtime lists it among the others from then on
        path = _registered[runtime_name][0]
        return Found(name, runtime_name, path, _plugin_devices(library, runtime_name, path), entry)
    if runtime_name in library.get_available_providers():
        return Found(name, runtime_name, BUILT_IN, _built_in_devices(library, entry), entry)
    for module in entry.modules if entry is not None else ():
        if importlib.util.find_spec(module) is not None:
            path = _plugin_path(module)
            return Found(name, runtime_name, path, _plugin_devices(library, runtime_name, path), entry)
    hint = f"{entry.install}; it is for {entry.platforms}" if entry is not None else "install a build of ONNX Runtime that has it; no package is known"
    raise MissingProviderError(f"the provider {name} is not in this environment (ONNX Runtime {library.__version__} in {_folder(library)}); to have it: {hint}")


def found_providers(library: Any) -> Iterator[tuple[str, Found | ProviderError]]:
    """Every provider of the table, and others that this ONNX Runtime has, with what was found or why there is none."""
    known = {entry.runtime_name for entry in PROVIDERS.values()}
    others = [name for name in library.get_available_providers() if name not in known and name != "AzureExecutionProvider"]  # that one calls a server
    for name in (*PROVIDERS, *others):
        try:
            yield name, find(library, name)
        except ProviderError as error:
            yield name, error


def target_of(library: Any, request: ProviderRequest) -> Target:
    """The target of a request by name. Raises ProviderError as `find` does, and for a provider without the device that is asked for."""
    if request.name == "cpu":
        return Target("cpu", CPU_PROVIDER, request.dialect or "cpu", "CPU", {})
    found = find(library, request.name, request.library)
    return _target(found, request)


def automatic_targets(library: Any) -> list[Target]:
    """What `auto` tries, in this order: providers with an NPU or a graphics processor, and then ONNX Runtime's CPU provider, which always is there.

    Another provider for the processor itself is never taken: on ours the CPU provider decoded faster than OpenVINO, since its cache is written in place.
    """
    targets, passed = [], []
    for name, found in found_providers(library):
        if name == "cpu" or isinstance(found, ProviderError):
            continue
        accelerators = [device for kind in _ACCELERATORS for device in found.devices if device.kind == kind]
        for kind in dict.fromkeys(device.kind for device in accelerators if _can_choose(found, device)):
            device = next(device for device in accelerators if device.kind == kind)
            targets.append(_target(found, ProviderRequest(name, device=kind), f"it has the {kind.upper()} {device.description}"))
        if accelerators and not any(_can_choose(found, device) for device in accelerators):
            kinds = " or ".join(device.kind.upper() for device in accelerators)
            targets.append(_target(found, ProviderRequest(name), f"it is for the {kinds} of this machine"))
        if not accelerators:
            kinds = ", ".join(dict.fromkeys(device.kind.upper() for device in found.devices))
            passed.append(f"{name} offers {kinds or 'no device'}")
    none = "no provider was found that offers a GPU or an NPU" if not targets else "those with a GPU or an NPU do not run the model"
    reason = none + (f" ({'; '.join(passed)})" if passed else "")
    return [*targets, Target("cpu", CPU_PROVIDER, "cpu", "CPU", {}, reason=reason)]


def _can_choose(found: Found, device: Device) -> bool:
    """Whether edgeinfer can tell the provider to use this device and no other."""
    return device.record is not None or found.name == "openvino"


def _target(found: Found, request: ProviderRequest, reason: str = "") -> Target:
    devices = found.devices
    if not devices:
        raise ProviderError(f"the provider {found.name} ({found.origin}) has no device on this machine{meant_for(found)}")
    matching = [device for device in devices if request.device in (None, device.kind)]
    if not matching:
        offered = ", ".join(f"{device.kind} ({device.description})" for device in devices)
        raise ProviderError(f"the provider {found.name} has no device of the kind {request.device!r} on this machine; it offers {offered}; leave device out")
    chosen = matching[0]
    if request.device is not None and not _can_choose(found, chosen):
        raise ProviderError(f"edgeinfer cannot tell the provider {found.name} which device to take; leave device out, and use the provider's own options")
    dialect = request.dialect or (found.entry.dialect if found.entry is not None else OTHER_DIALECT)
    options = {**(default_options(found.entry) if found.entry is not None else {}), **request.options}
    if chosen.record is None and found.name == "openvino":
        options.setdefault("device_type", chosen.kind.upper())
        _require_openvino_device(options["device_type"], devices)
    described = options.get("device_type", chosen.description)
    threads = found.entry.thread_option if found.entry is not None and chosen.kind == "cpu" else None
    one_row = found.entry is not None and found.entry.one_row
    return Target(found.name, found.runtime_name, dialect, described, options, () if chosen.record is None else (chosen.record,), reason, threads, one_row)


def _require_openvino_device(name: str, devices: tuple[Device, ...]) -> None:
    """Raises ProviderError for a device that OpenVINO does not have here. It would make the session all the same, and take no node, without a word.

    Names that combine devices (AUTO, HETERO:GPU, ...) are left to it.
    """
    offered = [device.description for device in devices]
    kinds = {device.kind.upper() for device in devices}
    combined = ":" in name or name in ("AUTO", "HETERO", "MULTI", "BATCH")
    if not combined and name not in offered and name.partition(".")[0] not in kinds:
        raise ProviderError(f"the provider openvino has no device {name!r} on this machine (device_type={name}); it offers {', '.join(offered)}")


def meant_for(found: Found) -> str:
    """What a provider is for, as the end of a sentence that says it has no device here."""
    if found.entry is None:
        return ""
    platforms = found.entry.plugin_platforms if found.origin != BUILT_IN and found.entry.plugin_platforms else found.entry.platforms
    return f"; it is for {platforms}"


def _runtime_name(library: Any, name: str) -> str:
    """ONNX Runtime's name of a provider that is not in the table."""
    wanted = name.lower().removesuffix(RUNTIME_SUFFIX)
    for known in dict.fromkeys((*library.get_available_providers(), *library.get_all_providers(), *_registered)):
        if known.lower().removesuffix(RUNTIME_SUFFIX) == wanted:
            return str(known)
    raise unknown_provider(name)


def _built_in_devices(library: Any, entry: Provider | None) -> tuple[Device, ...]:
    """OpenVINO can be asked; what others have is known from the table, or taken to be one device whose kind is not known."""
    if entry is not None and entry.name == "openvino":
        ask = getattr(library.capi._pybind_state, "get_available_openvino_device_ids", None)
        names = [str(name) for name in ask()] if ask is not None else ["CPU"]
        kinds = {name: name.partition(".")[0].lower() for name in names}
        return tuple(Device(kind, name) for name, kind in sorted(kinds.items(), key=lambda item: item[1] != "cpu") if kind in ("cpu", *_ACCELERATORS))
    kinds_known = entry.built_in_devices if entry is not None else ()
    return tuple(Device(kind, "this machine") for kind in kinds_known) or (Device("unknown", "this machine"),)


def _plugin_path(module: str) -> str:
    """Where the package of a plugin has its library."""
    try:
        return str(importlib.import_module(module).get_library_path())
    except Exception as error:  # whatever a package of others raises
        raise ProviderError(f"the package {module} cannot be used ({type(error).__name__}: {error}); repair or uninstall it") from error


def _plugin_devices(library: Any, runtime_name: str, path: str) -> tuple[Device, ...]:
    """Registers the library, once a process, and returns the devices that came with it, an NPU and a graphics processor first."""
    if not hasattr(library, "register_execution_provider_library"):
        raise ProviderError(f"ONNX Runtime {library.__version__} takes no plugins; install a newer one: pip install -U onnxruntime")
    path = os.path.abspath(path)
    with _lock:
        if runtime_name in _registered and _registered[runtime_name][0] != path:
            raise ProviderError(f"the provider {runtime_name} was registered from {printable(_registered[runtime_name][0])} in this process; start another one")
        if runtime_name not in _registered:
            if not os.path.isfile(path):
                raise ProviderError(f"there is no plugin {printable(path)}; give the path of its library")
            before = {record.ep_name for record in library.get_ep_devices()}
            try:
                library.register_execution_provider_library(runtime_name, path)
            except Exception as error:
                raise ProviderError(f"{printable(path)} cannot be registered as a provider: {_line(error)}") from error
            _registered[runtime_name] = (path, tuple(record for record in library.get_ep_devices() if record.ep_name not in before))
        records = _registered[runtime_name][1]
    devices = [Device(_kind(record), _described(record), record) for record in records]
    return tuple(sorted(devices, key=lambda device: ("npu", "gpu", "cpu").index(device.kind)))


def _kind(record: Any) -> str:
    return str(record.device.type).rpartition(".")[2].lower()


def _described(record: Any) -> str:
    """What a device says of itself."""
    metadata = record.device.metadata
    return printable(str(metadata.get("Description") or record.device.vendor or record.ep_vendor))


def _folder(library: Any) -> str:
    return printable(os.path.dirname(os.path.dirname(str(library.__file__))))


def _line(error: Exception) -> str:
    return " ".join(str(error).split())
