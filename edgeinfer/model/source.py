"""What the model layer needs of an opened model file. The GGUF reader has it; tests hand in files of their own. Everything here only describes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray


class TensorRecord(Protocol):
    """A tensor's entry in the directory of the file."""

    @property
    def shape(self) -> tuple[int, ...]:
        """In NumPy order: [output width, input width] for a linear weight."""
        ...

    @property
    def format_name(self) -> str:
        """The name of the quantization format, "Q4_K"."""
        ...


class ModelFile(Protocol):
    """An opened model file."""

    @property
    def metadata(self) -> Mapping[str, Any]:
        """Values by key: int, float, bool, str, or a sequence of these."""
        ...

    @property
    def tensors(self) -> Mapping[str, TensorRecord]: ...

    def tensor_blocks(self, name: str) -> NDArray[np.uint8]:
        """The stored bytes of a tensor: uint8[rows, row bytes]."""
        ...
