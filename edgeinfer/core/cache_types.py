"""What keys and values may be kept as, by name. Imports nothing: the command line's options read it."""

from __future__ import annotations

CACHE_TYPES = ("f16", "f32", "q8_0", "q16_0")
"""q8_0: a byte each and a half-float scale for up to 32. q16_0: 16 bits each and a float32 scale for a head, computed with integers."""

DEFAULT_CACHE_TYPES = {"numba": "q16_0", "llamacpp": "f16", "onnx": "f32"}
"""By backend: what it takes where none is asked for, its fastest."""
