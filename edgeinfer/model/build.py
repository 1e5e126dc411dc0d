"""From an opened model file to its program, in one call."""

from __future__ import annotations

from edgeinfer.core.errors import ModelFileError
from edgeinfer.model.decoder import build_decoder
from edgeinfer.model.dims import read_dims
from edgeinfer.model.program import Program
from edgeinfer.model.source import ModelFile
from edgeinfer.model.spec import load_spec
from edgeinfer.model.tensors import read_tensor_table


def build_program(file: ModelFile) -> Program:
    """The program of a model, as the decoder writes it (`rewrite.fuse` makes it shorter).

    Raises ModelFileError for metadata or tensors that are missing or contradict each other, and UnsupportedModelError for an architecture, a key or a
    tensor that edgeinfer does not have.
    """
    name = file.metadata.get("general.architecture")
    if not isinstance(name, str) or not name:
        raise ModelFileError("the file does not say what architecture it has (general.architecture, a text); it is no language model, or damaged")
    spec = load_spec(name)
    dims = read_dims(spec, file.metadata)
    return build_decoder(spec, dims, read_tensor_table(spec, dims, file.tensors))
