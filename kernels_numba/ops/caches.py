"""The cache types as compile-time values: how each stores keys and values (`cache_types`), and its steps of attention. `variants` names them."""

from __future__ import annotations

from kernels_numba.ops import attention_integers, attention_spans, cache_types

_FLOAT_STEPS = {
    "prepare_queries": attention_spans.scale_queries, "score_tile": attention_spans.score_tile, "score_row": attention_spans.score_row,
    "weigh": attention_spans.weigh, "value_tile": attention_spans.value_tile, "value_tile_64": attention_spans.value_tile_64,
}  # fmt: skip
_INTEGER_STEPS = {
    "prepare_queries": attention_integers.quantize_queries, "score_tile": attention_integers.score_tile_integers,
    "score_row": attention_integers.score_row_integers, "weigh": attention_integers.weigh_integers,
    "value_tile": attention_integers.value_tile_integers, "value_tile_64": attention_integers.value_tile_64_integers,
}  # fmt: skip
F16 = {**cache_types.F16, **_FLOAT_STEPS}
F32 = {**cache_types.F32, **_FLOAT_STEPS}
Q8_0 = {**cache_types.Q8_0, **_FLOAT_STEPS}
Q16_0 = {**cache_types.Q16_0, **_INTEGER_STEPS}
