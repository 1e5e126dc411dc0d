"""Metadata of small vocabularies, as the reader gives it: built from the shared ones."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from edgeinfer.gguf.writer import Typed
from tests.support.vocabularies import NORMAL, Piece, Vocabulary, bpe_vocabulary, sentencepiece_vocabulary


def sentence_piece_metadata(pieces: Sequence[str] = (), special: Sequence[Piece] = (), **changes: Any) -> dict[str, Any]:
    """The shared SentencePiece vocabulary with more tokens: `pieces` as the file spells them (may be there already), then `special`."""
    return _extended(sentencepiece_vocabulary(), pieces, special, changes)


def byte_pair_metadata(pieces: Sequence[str] = (), special: Sequence[Piece] = (), **changes: Any) -> dict[str, Any]:
    """The shared byte-level vocabulary with more tokens."""
    return _extended(bpe_vocabulary(), pieces, special, changes)


def _extended(vocabulary: Vocabulary, pieces: Sequence[str], special: Sequence[Piece], changes: dict[str, Any]) -> dict[str, Any]:
    """changes: keys without their prefix; None leaves a key out."""
    metadata: dict[str, Any] = {key: value.value if isinstance(value, Typed) else value for key, value in vocabulary.metadata.items()}
    added = [*pieces, *(piece.text for piece in special)]
    types = [NORMAL] * len(pieces) + [piece.token_type for piece in special]
    metadata["tokenizer.ggml.tokens"] = [*metadata["tokenizer.ggml.tokens"], *added]
    metadata["tokenizer.ggml.token_type"] = np.array([*metadata["tokenizer.ggml.token_type"], *types], np.int32)
    if "tokenizer.ggml.scores" in metadata:
        scores = list(metadata["tokenizer.ggml.scores"])
        metadata["tokenizer.ggml.scores"] = np.array([*scores, *(float(-len(scores) - place) for place in range(len(added)))], np.float32)
    for key, value in changes.items():
        metadata[f"tokenizer.ggml.{key}"] = value
        if value is None:
            del metadata[f"tokenizer.ggml.{key}"]
    return metadata
