"""From a GGUF file to a `Tokenizer`. Works on files that hold a vocabulary and no tensors."""

from __future__ import annotations

import os
import warnings
from collections.abc import Mapping
from typing import Any, Protocol

from edgeinfer.core.errors import TokenizerError
from edgeinfer.tokenizer.base import TextEncoder, Tokenizer
from edgeinfer.tokenizer.bpe import BytePairEncoder
from edgeinfer.tokenizer.pretokenizers import find_pre_tokenizer
from edgeinfer.tokenizer.spm import SentencePieceEncoder
from edgeinfer.tokenizer.vocabulary import Algorithm, Vocabulary, read_vocabulary


class HasMetadata(Protocol):
    """An open GGUF file, as far as a tokenizer is concerned."""

    @property
    def metadata(self) -> Mapping[str, Any]: ...


def load_tokenizer(source: str | os.PathLike[str] | HasMetadata) -> Tokenizer:
    """The tokenizer of a GGUF file: a path, or a file that is already open (it may be closed afterwards).

    ModelNotFoundError, ModelFileError: see `GGUFFile.open`. TokenizerError: the vocabulary contradicts itself, or needs a tokenizer or a
    pre-tokenizer that edgeinfer does not have. A byte-level vocabulary that does not name its pre-tokenizer is read with llama.cpp's default one,
    and a warning says so.
    """
    if isinstance(source, (str, os.PathLike)):
        from edgeinfer.gguf.reader import GGUFFile

        with GGUFFile.open(source) as file:
            return tokenizer_from_metadata(file.metadata)
    return tokenizer_from_metadata(source.metadata)


def tokenizer_from_metadata(metadata: Mapping[str, Any]) -> Tokenizer:
    """The tokenizer that GGUF metadata describes; see `load_tokenizer`."""
    vocabulary = read_vocabulary(metadata)
    if vocabulary.algorithm is Algorithm.SENTENCE_PIECE:
        return _sentence_piece(vocabulary)
    return _byte_pair(vocabulary)


def _sentence_piece(vocabulary: Vocabulary) -> Tokenizer:
    assert vocabulary.scores is not None and vocabulary.named.unk is not None  # `read_vocabulary` has made sure
    add_space_prefix = vocabulary.add_space_prefix is not False
    add_bos = vocabulary.add_bos is not False and (vocabulary.named.bos is not None)
    encoder = SentencePieceEncoder(vocabulary.ids, vocabulary.scores, add_space_prefix, vocabulary.named.unk)
    return Tokenizer(vocabulary, encoder, add_bos, add_space_prefix, byte_level=False)


def _byte_pair(vocabulary: Vocabulary) -> Tokenizer:
    name = vocabulary.pre_tokenizer
    if name is None or name == "default":
        said = "does not name its pre-tokenizer (tokenizer.ggml.pre)" if name is None else "names the pre-tokenizer 'default'"
        warnings.warn(
            f"the vocabulary {said}: the default one of llama.cpp is used, and token ids may differ from those the model was trained on. "
            "Convert the model again with a current converter",
            stacklevel=4,
        )
        name = "default"
    pre_tokenizer = find_pre_tokenizer(name)
    add_bos = pre_tokenizer.add_bos if vocabulary.add_bos is None else vocabulary.add_bos
    if name == "gemma4":
        add_bos = True  # such files were converted with the wrong flag; llama.cpp does the same
    if add_bos and vocabulary.named.bos is None:
        raise TokenizerError(f"the pre-tokenizer '{name}' asks for a BOS token, but tokenizer.ggml.bos_token_id does not name it; convert the model again")
    encoder: TextEncoder = BytePairEncoder(vocabulary.ids, vocabulary.merges, pre_tokenizer)
    return Tokenizer(vocabulary, encoder, add_bos, vocabulary.add_space_prefix is True, byte_level=pre_tokenizer.byte_level)
