"""`Vocabulary`: the pieces, types, scores, merges and special ids of a GGUF file, checked, and with llama.cpp's corrections of token types applied.

`load` builds one from metadata; the encoders and `base.Tokenizer` read it. Nothing here encodes or decodes text.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgeinfer.core.errors import TokenizerError
from edgeinfer.tokenizer.special import NamedIds, TokenType, correct_types_and_find_ends

PREFIX = "tokenizer.ggml."
KNOWN_MODELS = ("gpt2", "llama", "gemma4")


class Algorithm(enum.Enum):
    """How text becomes pieces."""

    BYTE_PAIR = "BPE"
    SENTENCE_PIECE = "SPM"


@dataclass(frozen=True, eq=False)
class Vocabulary:
    """Everything that a tokenizer needs from a file. It holds no reference to the file."""

    algorithm: Algorithm
    model: str
    pieces: list[str]
    ids: dict[str, int]
    types: bytes
    """A `TokenType` for each id."""
    scores: NDArray[np.float32] | None
    """f32[vocabulary]; None where the algorithm needs none."""
    merges: list[str]
    """"left right", in order of rank."""
    pre_tokenizer: str | None
    """`tokenizer.ggml.pre`; None if the file does not say."""
    named: NamedIds
    end_of_generation_ids: frozenset[int]
    add_bos: bool | None
    """None: the file does not say."""
    add_eos: bool
    add_space_prefix: bool | None
    strips_right: frozenset[int]
    """Special tokens that swallow the white space after them when they are found in a text."""
    strips_left: frozenset[int]


def read_vocabulary(metadata: Mapping[str, Any]) -> Vocabulary:
    """The vocabulary in GGUF metadata (keys `tokenizer.ggml.*`; arrays of numbers as NumPy arrays, arrays of strings as sequences).

    TokenizerError: a key is missing, has the wrong type or length, or contradicts another one; the message names it.
    """
    model = metadata.get(PREFIX + "model")
    if model is None:
        raise TokenizerError(f"the file has no vocabulary (no {PREFIX}model); take a GGUF file that was converted with its tokenizer")
    if model not in KNOWN_MODELS:
        raise TokenizerError(
            f"{PREFIX}model is {model!r}, which edgeinfer does not have; it knows 'gpt2' (byte-level BPE), 'llama' (SentencePiece BPE) and 'gemma4'"
        )
    algorithm = Algorithm.SENTENCE_PIECE if model == "llama" else Algorithm.BYTE_PAIR
    pieces = _strings(metadata, "tokens")
    if not pieces:
        raise TokenizerError(f"{PREFIX}tokens is empty; the vocabulary must have at least one token")
    if "" in pieces:  # llama.cpp's names for them
        pieces = [piece or f"[EMPTY_{token_id}]" for token_id, piece in enumerate(pieces)]
    ids = dict(zip(pieces, range(len(pieces)), strict=True))
    if len(ids) != len(pieces):
        _refuse_duplicate(pieces)

    types = bytearray(_types(metadata, len(pieces)))
    scores = _scores(metadata, len(pieces), algorithm)
    named = _named_ids(metadata, len(pieces), algorithm)
    named, ends = correct_types_and_find_ends(ids, types, named, pieces)
    strips_left, strips_right = _stripping_tokens(metadata, ids, types)
    add_bos = _flag(metadata, "add_bos_token")
    if add_bos and named.bos is None:
        raise TokenizerError(f"{PREFIX}add_bos_token asks for a token at the beginning, but {PREFIX}bos_token_id does not name it")
    add_eos = bool(_flag(metadata, "add_eos_token"))
    if add_eos and named.eos is None:
        raise TokenizerError(f"{PREFIX}add_eos_token asks for a token at the end, but {PREFIX}eos_token_id does not name it")
    pre = metadata.get(PREFIX + "pre")
    if pre is not None and not isinstance(pre, str):
        raise TokenizerError(f"{PREFIX}pre is {pre!r}; it must be a string")
    if model == "gemma4":
        pre = "gemma4"
    return Vocabulary(
        algorithm=algorithm,
        model=model,
        pieces=pieces,
        ids=ids,
        types=bytes(types),
        scores=scores,
        merges=_merges(metadata, pre) if algorithm is Algorithm.BYTE_PAIR else [],
        pre_tokenizer=pre or None,
        named=named,
        end_of_generation_ids=ends,
        add_bos=add_bos,
        add_eos=add_eos,
        add_space_prefix=_flag(metadata, "add_space_prefix"),
        strips_left=strips_left,
        strips_right=strips_right,
    )


def byte_of_piece(piece: str) -> int | None:
    """The byte that a piece such as '<0x0A>' stands for; None if it does not have that form."""
    if len(piece) == 6 and piece.startswith("<0x") and piece.endswith(">") and all(digit in "0123456789abcdefABCDEF" for digit in piece[3:5]):
        return int(piece[3:5], 16)
    return None


def _strings(metadata: Mapping[str, Any], name: str) -> list[str]:
    value = metadata.get(PREFIX + name)
    if value is None:
        raise TokenizerError(f"{PREFIX}{name} is missing; the vocabulary cannot be used without it")
    if isinstance(value, (str, bytes, np.ndarray)) or not isinstance(value, Sequence):
        raise TokenizerError(f"{PREFIX}{name} is {_describe(value)}; it must be an array of strings")
    if hasattr(value, "to_list"):
        strings: list[str] = value.to_list()
        return strings
    strings = list(value)
    if not all(isinstance(piece, str) for piece in strings):
        raise TokenizerError(f"{PREFIX}{name} holds something other than strings; it must be an array of strings")
    return strings


def _types(metadata: Mapping[str, Any], count: int) -> bytes:
    """One byte for each token. Without the key all are normal; values that llama.cpp does not know count as undefined (0)."""
    value = metadata.get(PREFIX + "token_type")
    if value is None:
        return bytes([TokenType.NORMAL]) * count
    if not isinstance(value, np.ndarray) or value.dtype not in (np.dtype("i4"), np.dtype("u4")):
        raise TokenizerError(f"{PREFIX}token_type is {_describe(value)}; it must be an array of INT32")
    _check_length("token_type", len(value), count)
    types = value[:count].astype(np.int64)
    return np.where((types >= 0) & (types <= max(TokenType)), types, 0).astype(np.uint8).tobytes()


def _scores(metadata: Mapping[str, Any], count: int, algorithm: Algorithm) -> NDArray[np.float32] | None:
    value = metadata.get(PREFIX + "scores")
    if value is None:
        if algorithm is Algorithm.SENTENCE_PIECE:
            raise TokenizerError(f"{PREFIX}scores is missing; a SentencePiece vocabulary (tokenizer.ggml.model 'llama') merges by score")
        return None
    if not isinstance(value, np.ndarray) or value.dtype != np.dtype("f4"):
        raise TokenizerError(f"{PREFIX}scores is {_describe(value)}; it must be an array of FLOAT32")
    _check_length("scores", len(value), count)
    if algorithm is not Algorithm.SENTENCE_PIECE:
        return None
    if np.isnan(value).any():
        raise TokenizerError(f"{PREFIX}scores has a NaN for token {int(np.isnan(value).argmax())}; every score must be a number")
    return np.array(value, np.float32)


def _merges(metadata: Mapping[str, Any], pre: str | None) -> list[str]:
    if pre == "kimi-k2" and PREFIX + "merges" not in metadata:
        return []  # such files exist, and llama.cpp reads them
    merges = _strings(metadata, "merges")
    malformed = [merge for merge in merges if merge.find(" ", 1, -1) < 0]
    if malformed:
        raise TokenizerError(f"{PREFIX}merges: entry {merges.index(malformed[0])} is {malformed[0]!r}; it must be two pieces with a space between them")
    return merges


def _named_ids(metadata: Mapping[str, Any], count: int, algorithm: Algorithm) -> NamedIds:
    """The ids that the file names. A SentencePiece file that is silent about BOS, EOS and UNK has them at 1, 2 and 0, if it has so many tokens."""
    found: dict[str, int] = {}
    if algorithm is Algorithm.SENTENCE_PIECE:
        found = {name: default for name, default in (("bos", 1), ("eos", 2), ("unk", 0)) if default < count}
    for name, keys in NamedIds.KEYS.items():
        for key in keys:
            value = metadata.get(PREFIX + key)
            if value is None:
                continue
            if isinstance(value, bool) or not isinstance(value, int):
                raise TokenizerError(f"{PREFIX}{key} is {_describe(value)}; it must be a token id")
            if not 0 <= value < count:
                raise TokenizerError(f"{PREFIX}{key} is {value}, but the vocabulary has {count} tokens; it must be between 0 and {count - 1}")
            found[name] = value
    return NamedIds(**found)


def _stripping_tokens(metadata: Mapping[str, Any], ids: Mapping[str, int], types: bytearray) -> tuple[frozenset[int], frozenset[int]]:
    """The tokens that swallow white space to their left, and to their right. GGUF has no key: llama.cpp goes by the model's name, so must we."""
    name = str(metadata.get("general.name", "")).lower()
    pre = str(metadata.get(PREFIX + "pre", ""))
    if any(part in pre for part in ("jina-v2-de", "jina-v2-es", "jina-v2-code")):
        return frozenset(ids[token] for token in ("<mask>",) if token in ids), frozenset()
    if "phi-3" in name or "phi3" in name:
        special = {index for index, kind in enumerate(types) if kind in (TokenType.UNKNOWN, TokenType.CONTROL, TokenType.USER_DEFINED)}
        special |= {ids[token] for token in ("</s>",) if token in ids}
        return frozenset(), frozenset(special - {ids[token] for token in ("<unk>", "<s>", "<|endoftext|>") if token in ids})
    if "modern-bert" in name:
        return frozenset(ids[token] for token in ("[MASK]",) if token in ids), frozenset()
    return frozenset(), frozenset()


def _flag(metadata: Mapping[str, Any], name: str) -> bool | None:
    value = metadata.get(PREFIX + name)
    if value is None:
        return None
    if not isinstance(value, (bool, np.bool_)):
        raise TokenizerError(f"{PREFIX}{name} is {_describe(value)}; it must be a BOOL")
    return bool(value)


def _check_length(name: str, found: int, expected: int) -> None:
    if found != expected:
        raise TokenizerError(f"{PREFIX}{name} has {found} entries, but {PREFIX}tokens has {expected}; they must be equally many")


def _refuse_duplicate(pieces: list[str]) -> None:
    first: dict[str, int] = {}
    for token_id, piece in enumerate(pieces):
        if piece in first:
            raise TokenizerError(f"{PREFIX}tokens: tokens {first[piece]} and {token_id} are both {piece!r}; every token must have a text of its own")
        first[piece] = token_id


def _describe(value: object) -> str:
    if isinstance(value, np.ndarray):
        return f"an array of {value.dtype.name}"
    if isinstance(value, Sequence) and not isinstance(value, str):
        return "an array of strings"
    return f"{type(value).__name__} {value!r}"
