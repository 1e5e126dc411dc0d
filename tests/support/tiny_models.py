"""Tiny models with random weights, and chains: models rigged so that their greedy output is a given list of tokens.

`tiny_llama`, `tiny_qwen2` and `tiny_gemma3` write GGUF files that llama.cpp loads too. Their weights are scaled so that logits spread by about 3 and
every part of the network matters: a wrong rope pairing, a lost bias or norm changes the greedy answer. Options that all three share:

width, layers, heads, kv_heads, head_size (None: width / heads), feed_forward: the dimensions; weight_format: a format's name, or a function from a
tensor's name to one, for all matrices (vectors stay F32); tied: no output.weight; vocabulary: see `vocabularies`; seed; metadata: keys to set or,
with None, to leave out; tensors: float32 arrays that replace or extend the random ones, or None to leave one out.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from edgeinfer.gguf.writer import TensorData, quantized, write_gguf
from tests.support.vocabularies import Piece, Vocabulary, bpe_text, bpe_vocabulary, sentencepiece_text, sentencepiece_vocabulary

WeightFormat = str | Callable[[str], str]
Weights = dict[str, NDArray[np.float32]]


def tiny_llama(path: Path, *, biases: bool = False, vocabulary: Vocabulary | None = None, **options: Any) -> Path:
    """A llama model (rope on neighbouring pairs). `biases`: with biases for attn_output and the feed-forward, which the architecture allows."""
    return _write_tiny("llama", path, vocabulary or bpe_vocabulary(), attention_biases=False, other_biases=biases, **options)


def tiny_qwen2(path: Path, *, biases: bool = True, vocabulary: Vocabulary | None = None, **options: Any) -> Path:
    """A qwen2 model (rope on halves) with biases for q, k and v."""
    return _write_tiny("qwen2", path, vocabulary or bpe_vocabulary(pre="qwen2", add_bos=False), attention_biases=biases, **options)


def tiny_gemma3(
    path: Path,
    *,
    vocabulary: Vocabulary | None = None,
    layers: int = 6,
    heads: int = 2,
    kv_heads: int = 1,
    head_size: int = 32,
    tied: bool = True,
    sliding_window: int = 16,
    metadata: Mapping[str, Any] | None = None,
    **options: Any,
) -> Path:
    """A gemma3 model: q/k norms, post norms, tied embeddings scaled by sqrt(width), and a sliding window in all layers but every sixth.

    Norm weights are stored as they are multiplied (converters have already added the 1).
    """
    windows = {"gemma3.attention.sliding_window": sliding_window, "gemma3.rope.freq_base": 1_000_000.0}
    return _write_tiny(
        "gemma3", path, vocabulary or sentencepiece_vocabulary(add_space_prefix=False), layers=layers, heads=heads, kv_heads=kv_heads,
        head_size=head_size, tied=tied, attention_biases=False, extra_norms=True, metadata={**windows, **(metadata or {})}, **options,
    )  # fmt: skip


def _write_tiny(
    architecture: str,
    path: Path,
    vocabulary: Vocabulary,
    *,
    width: int = 64,
    layers: int = 2,
    heads: int = 4,
    kv_heads: int = 2,
    head_size: int | None = None,
    feed_forward: int = 128,
    weight_format: WeightFormat = "F32",
    tied: bool = False,
    context_length: int = 256,
    attention_biases: bool,
    other_biases: bool = False,
    extra_norms: bool = False,
    seed: int = 0,
    metadata: Mapping[str, Any] | None = None,
    tensors: Mapping[str, NDArray[np.float32] | None] | None = None,
) -> Path:
    random = np.random.default_rng(seed)
    size = head_size or width // heads

    def matrix(rows: int, columns: int, gain: float) -> NDArray[np.float32]:
        return (random.standard_normal((rows, columns)) * (gain / np.sqrt(columns))).astype(np.float32)

    def norm(length: int) -> NDArray[np.float32]:
        return (1 + 0.3 * random.standard_normal(length)).astype(np.float32)

    def bias(length: int) -> NDArray[np.float32]:
        return (0.5 * random.standard_normal(length)).astype(np.float32)

    # A tied model whose last norm is all positive would mostly repeat its input: the residual holds the token's own embedding.
    signs = random.choice(np.array([-1, 1], dtype=np.float32), width) if tied else np.float32(1)
    weights: Weights = {
        "token_embd.weight": matrix(vocabulary.size, width, 3.0 if tied else float(np.sqrt(width))),
        "output_norm.weight": norm(width) * signs,
    }
    if not tied:
        weights["output.weight"] = matrix(vocabulary.size, width, 3.0)
    for layer in range(layers):
        block = f"blk.{layer}."
        weights[block + "attn_norm.weight"] = norm(width)
        for name, rows in (("attn_q", heads * size), ("attn_k", kv_heads * size), ("attn_v", kv_heads * size)):
            weights[block + name + ".weight"] = matrix(rows, width, 1.5)
            if attention_biases:
                weights[block + name + ".bias"] = bias(rows)
        weights[block + "attn_output.weight"] = matrix(width, heads * size, 1.5)
        weights[block + "ffn_norm.weight"] = norm(width)
        weights[block + "ffn_gate.weight"] = matrix(feed_forward, width, 1.5)
        weights[block + "ffn_up.weight"] = matrix(feed_forward, width, 1.5)
        weights[block + "ffn_down.weight"] = matrix(width, feed_forward, 1.5)
        if other_biases:
            weights[block + "attn_output.bias"] = bias(width)
            weights[block + "ffn_gate.bias"] = bias(feed_forward)
            weights[block + "ffn_up.bias"] = bias(feed_forward)
            weights[block + "ffn_down.bias"] = bias(width)
        if extra_norms:
            weights[block + "attn_q_norm.weight"] = norm(size)
            weights[block + "attn_k_norm.weight"] = norm(size)
            weights[block + "post_attention_norm.weight"] = norm(width)
            weights[block + "post_ffw_norm.weight"] = norm(width)
    keys: dict[str, Any] = {
        "general.architecture": architecture,
        "general.name": f"tiny {architecture}",
        f"{architecture}.block_count": layers,
        f"{architecture}.context_length": context_length,
        f"{architecture}.embedding_length": width,
        f"{architecture}.feed_forward_length": feed_forward,
        f"{architecture}.attention.head_count": heads,
        f"{architecture}.attention.head_count_kv": kv_heads,
        f"{architecture}.attention.layer_norm_rms_epsilon": 1e-6,
        f"{architecture}.rope.freq_base": 10_000.0,
        f"{architecture}.rope.dimension_count": size,
        **vocabulary.metadata,
    }
    if head_size is not None:
        keys[f"{architecture}.attention.key_length"] = head_size
        keys[f"{architecture}.attention.value_length"] = head_size
    return _write(path, keys, weights, weight_format, metadata, tensors)


def _write(
    path: Path,
    keys: dict[str, Any],
    weights: Weights,
    weight_format: WeightFormat,
    metadata: Mapping[str, Any] | None = None,
    tensors: Mapping[str, NDArray[np.float32] | None] | None = None,
) -> Path:
    changed = {**keys, **(metadata or {})}
    values = {**weights, **(tensors or {})}
    write_gguf(
        path,
        {key: value for key, value in changed.items() if value is not None},
        {name: _tensor(name, value, weight_format) for name, value in values.items() if value is not None},
    )
    return path


def _tensor(name: str, values: NDArray[np.float32], weight_format: WeightFormat) -> TensorData:
    if values.ndim < 2:
        return quantized(values, "F32")
    return quantized(values, weight_format if isinstance(weight_format, str) else weight_format(name))


@dataclass(frozen=True)
class ChainModel:
    """A rigged model. `piece_ids[i]` is the token id of `pieces[i]`; `chain` is its greedy output as ids, with the final EOS if there is one."""

    path: Path
    vocabulary: Vocabulary
    piece_ids: tuple[int, ...]
    chain: tuple[int, ...]


def chain_model(
    path: Path,
    pieces: Sequence[str | bytes | Piece],
    sequence: Sequence[int] | None = None,
    *,
    kind: Literal["sentencepiece", "bpe"] = "sentencepiece",
    ends: bool = True,
    margin: float = 20.0,
    context_length: int = 4096,
    metadata: Mapping[str, Any] | None = None,
) -> ChainModel:
    """Write a llama model (F32, one layer that adds nothing) whose greedy output is `sequence`, indices into `pieces` (None: all, in order).

    pieces: text (spaces as spaces), bytes (b"\\xe4" is one byte token), or a `Piece` with a token type (control tokens and the like).
    kind: "sentencepiece" or "bpe". The model knows only the last token: a token of the sequence leads to its successor, the last one to EOS (`ends`)
    or to the first again, and every other token, BOS and EOS included, to the first. So a token may not be in the sequence twice, and a prompt has to
    end with a token outside it. The winner's logit is `margin`, all others are 0 (and stay there whatever the context is).
    """
    wanted = [piece if isinstance(piece, Piece) else Piece(piece) for piece in pieces]
    vocabulary = bpe_vocabulary(wanted) if kind == "bpe" else sentencepiece_vocabulary(wanted)
    spell: Callable[[str | bytes], str | bytes] = bpe_text if kind == "bpe" else sentencepiece_text
    ids = {text: number for number, text in enumerate(vocabulary.texts)}
    piece_ids = tuple(ids[spell(piece.text) if piece.token_type == 1 else piece.text] for piece in wanted)
    chain = [piece_ids[index] for index in (range(len(pieces)) if sequence is None else sequence)]
    if ends:
        chain.append(vocabulary.eos)
    if len(set(chain)) != len(chain):
        raise ValueError("a token may be in the sequence only once: the model knows nothing but the last token")
    successor = np.full(vocabulary.size, chain[0])
    successor[chain[:-1]] = chain[1:]

    width = -(-vocabulary.size // 32) * 32
    head_size, feed_forward = 32, 32
    embedding = np.eye(vocabulary.size, width, dtype=np.float32)
    # The last norm turns the one-hot embedding into one element of sqrt(width).
    output = np.zeros((vocabulary.size, width), np.float32)
    output[successor, np.arange(vocabulary.size)] = margin / np.sqrt(width)
    ones = np.ones(width, np.float32)
    weights: Weights = {
        "token_embd.weight": embedding,
        "output_norm.weight": ones,
        "output.weight": output,
        "blk.0.attn_norm.weight": ones,
        "blk.0.attn_q.weight": np.zeros((head_size, width), np.float32),
        "blk.0.attn_k.weight": np.zeros((head_size, width), np.float32),
        "blk.0.attn_v.weight": np.zeros((head_size, width), np.float32),
        "blk.0.attn_output.weight": np.zeros((width, head_size), np.float32),
        "blk.0.ffn_norm.weight": ones,
        "blk.0.ffn_gate.weight": np.zeros((feed_forward, width), np.float32),
        "blk.0.ffn_up.weight": np.zeros((feed_forward, width), np.float32),
        "blk.0.ffn_down.weight": np.zeros((width, feed_forward), np.float32),
    }
    keys = {
        "general.architecture": "llama",
        "general.name": "chain",
        "llama.block_count": 1,
        "llama.context_length": context_length,
        "llama.embedding_length": width,
        "llama.feed_forward_length": feed_forward,
        "llama.attention.head_count": 1,
        "llama.attention.head_count_kv": 1,
        "llama.attention.key_length": head_size,
        "llama.attention.value_length": head_size,
        "llama.attention.layer_norm_rms_epsilon": 1e-6,
        "llama.rope.freq_base": 10_000.0,
        "llama.rope.dimension_count": head_size,
        **vocabulary.metadata,
    }
    return ChainModel(_write(path, keys, weights, "F32", metadata), vocabulary, piece_ids, tuple(chain))
