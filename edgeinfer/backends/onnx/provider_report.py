"""What `edgeinfer doctor` says of each execution provider. Run as a module it prints them as a JSON object, so that the doctor can look in a process of its
own: registering a plugin runs code of others.
"""

from __future__ import annotations

import json

from edgeinfer.backends.onnx.library import require_onnxruntime
from edgeinfer.backends.onnx.provider_search import OTHER_DIALECT, Found, MissingProviderError, found_providers, meant_for
from edgeinfer.backends.onnx.providers import PROVIDERS
from edgeinfer.core.errors import BackendUnavailableError, ProviderError


def provider_findings() -> dict[str, str]:
    """By name a line about each provider: where it comes from, its devices, the dialect that it takes; or how to have it."""
    try:
        library = require_onnxruntime()
    except BackendUnavailableError:
        return missing_findings()
    return {name: _line(name, found) for name, found in found_providers(library)}


def missing_findings() -> dict[str, str]:
    """The lines where there is no ONNX Runtime, or none that can be asked."""
    return {name: _to_have(name) for name in PROVIDERS}


def _line(name: str, found: Found | ProviderError) -> str:
    if isinstance(found, ProviderError):
        return _to_have(name) if isinstance(found, MissingProviderError) else f"does not work: {found}"
    entry = PROVIDERS.get(name)
    dialect = f"dialect {entry.dialect} ({entry.evidence})" if entry is not None else f"dialect {OTHER_DIALECT} (not in edgeinfer's table)"
    devices = ", ".join(f"{device.kind} ({device.description})" for device in found.devices)
    if not devices:
        return f"found ({found.origin}), but it has no device here{meant_for(found)}"
    return f"found ({found.origin}), devices: {devices}; {dialect}"


def _to_have(name: str) -> str:
    entry = PROVIDERS[name]
    return f"not here; dialect {entry.dialect}, for {entry.platforms}; to have it: {entry.install}"


if __name__ == "__main__":
    print(json.dumps(provider_findings()))
