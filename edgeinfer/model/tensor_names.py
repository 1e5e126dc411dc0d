"""The roles that tensors play in a decoder, with the names that GGUF files give them.

`spec` lets an architecture rename them, `tensors` fills them."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

DEFAULT_TENSOR_NAMES: Mapping[str, str] = MappingProxyType(
    {
        "token_embedding": "token_embd",
        "rope_factors": "rope_freqs",
        "attention_norm": "blk.{layer}.attn_norm",
        "query": "blk.{layer}.attn_q",
        "key": "blk.{layer}.attn_k",
        "value": "blk.{layer}.attn_v",
        "query_norm": "blk.{layer}.attn_q_norm",
        "key_norm": "blk.{layer}.attn_k_norm",
        "attention_output": "blk.{layer}.attn_output",
        "post_attention_norm": "blk.{layer}.post_attention_norm",
        "feed_forward_norm": "blk.{layer}.ffn_norm",
        "gate": "blk.{layer}.ffn_gate",
        "up": "blk.{layer}.ffn_up",
        "down": "blk.{layer}.ffn_down",
        "post_feed_forward_norm": "blk.{layer}.post_ffw_norm",
        "output_norm": "output_norm",
        "output": "output",
    }
)
"""Role -> name without the suffix `.weight` or `.bias`."""
