"""edgeinfer: a CPU inference runtime for quantized GGUF language models.

`Engine` and `SamplingParams` are what programs use; the errors are in `edgeinfer.core.errors`. Names are loaded when first asked for: importing
this package costs nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from edgeinfer.core.requests import SamplingParams
    from edgeinfer.engine import Engine

__all__ = ["Engine", "SamplingParams", "__version__"]


def __getattr__(name: str) -> Any:
    if name == "Engine":
        from edgeinfer.engine import Engine

        return Engine
    if name == "SamplingParams":
        from edgeinfer.core.requests import SamplingParams

        return SamplingParams
    if name == "__version__":
        from edgeinfer.core.version import __version__

        return __version__
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
