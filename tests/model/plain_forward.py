"""A llama forward pass written down without any of edgeinfer: gguf-py reads the file, loops over positions and heads do the rest. Slow and plain."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray


def plain_llama_logits(path: Path, token_ids: list[int], *, rope_divisor: float = 1.0) -> NDArray[np.float64]:
    """float64[tokens, vocabulary] of an F32 llama file with neighbouring rope pairs; `rope_divisor`: what every frequency is divided by."""
    import gguf

    reader = gguf.GGUFReader(str(path))
    weights: dict[str, Any] = {tensor.name: np.array(tensor.data, np.float64) for tensor in reader.tensors}
    names = ("block_count", "attention.head_count", "attention.head_count_kv", "attention.layer_norm_rms_epsilon", "rope.freq_base")
    layers, heads, kv_heads, epsilon, base = (reader.fields[f"llama.{name}"].contents() for name in names)
    size = len(weights["blk.0.attn_q.weight"]) // heads
    factors = weights.get("rope_freqs.weight", np.ones(size // 2)) * rope_divisor

    def norm(vector: NDArray[np.float64], weight: NDArray[np.float64]) -> NDArray[np.float64]:
        return vector / np.sqrt((vector**2).mean() + epsilon) * weight

    def turned(vector: NDArray[np.float64], position: int) -> NDArray[np.float64]:
        pairs = vector.reshape(-1, size // 2, 2)
        angles = position * base ** (-2 * np.arange(size // 2) / size) / factors
        complex_pairs = (pairs[..., 0] + 1j * pairs[..., 1]) * np.exp(1j * angles)
        return np.stack([complex_pairs.real, complex_pairs.imag], axis=-1).reshape(-1, size)

    states = [weights["token_embd.weight"][token] for token in token_ids]
    for layer in range(layers):
        block = {name.removeprefix(f"blk.{layer}."): values for name, values in weights.items() if name.startswith(f"blk.{layer}.")}
        keys: list[NDArray[np.float64]] = []
        values: list[NDArray[np.float64]] = []
        for position, state in enumerate(states):
            hidden = norm(state, block["attn_norm.weight"])
            queries = turned(block["attn_q.weight"] @ hidden, position)
            keys.append(turned(block["attn_k.weight"] @ hidden, position))
            values.append((block["attn_v.weight"] @ hidden).reshape(kv_heads, size))
            mixed = []
            for head in range(heads):
                shared = head // (heads // kv_heads)
                shares = np.exp([queries[head] @ key[shared] / np.sqrt(size) for key in keys])
                mixed.append(sum(share * value[shared] for share, value in zip(shares, values)) / shares.sum())
            state = state + block["attn_output.weight"] @ np.concatenate(mixed)
            hidden = norm(state, block["ffn_norm.weight"])
            gate = block["ffn_gate.weight"] @ hidden
            states[position] = state + block["ffn_down.weight"] @ (gate / (1 + np.exp(-gate)) * (block["ffn_up.weight"] @ hidden))
    output = weights.get("output.weight", weights["token_embd.weight"])
    return np.array([output @ norm(state, weights["output_norm.weight"]) for state in states])
