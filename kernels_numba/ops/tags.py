"""The compile-time values that kernels are specialized by, by name: formats ("Q4_1"), cache types ("f16"), functions ("silu"). Imported only where kernels
compile."""

from __future__ import annotations

import functools
import importlib
from typing import Any

from kernels_numba.executor.compile import CompileTimeValue
from kernels_numba.formats import Format
from kernels_numba.layouts import FloatLayout, PackedLayout, packed_layout
from kernels_numba.ops import embedding, linear, matrices
from kernels_numba.ops.common import BLOCK_BYTES_PER_TOKEN
from kernels_numba.ops.variants import VARIANTS


@functools.cache
def resolve_tag(name: str) -> CompileTimeValue:
    """A format's tag has the members of its packed layout and the steps of drivers that follow from it; the others are those of `variants`."""
    if name in VARIANTS:
        module, member = VARIANTS[name]
        value = getattr(importlib.import_module(f"kernels_numba.{module}"), member)
        return CompileTimeValue(name, _plane_members(value) if isinstance(value, PackedLayout) else value)
    layout = packed_layout(name)
    return CompileTimeValue(name, _float_members(layout) if isinstance(layout, FloatLayout) else _packed_members(name, layout))


def _float_members(layout: FloatLayout) -> dict[str, Any]:
    return {"element_bytes": layout.element_bytes, "load": layout.load}


def _packed_members(name: str, layout: PackedLayout) -> dict[str, Any]:
    format: Format = importlib.import_module(f"kernels_numba.formats.{name.lower()}").FORMAT  # this file alone: it is what the digest covers
    members = _layout_members(layout)
    members |= {"block_bytes": format.block_bytes, "blocks_per_record": 1 if format.block_elements > 32 else layout.groups_per_record}
    if layout.minimum is not None:
        members |= {"minimum": layout.minimum, "step": linear.step_with_minimum, "element": embedding.element_with_minimum}
        members |= {"keep_parts": matrices.keep_scale_and_minimum, "add_products": matrices.add_with_minimum}
    if layout.low_scale is not None:
        members |= {"low_scale": layout.low_scale, "high_scale": layout.high_scale}
        members |= {"step": linear.step_with_sub_scales, "element": embedding.element_with_sub_scales}
        members |= {"keep_parts": matrices.keep_sub_scales, "add_products": matrices.add_with_sub_scales}
        members |= {"multiply": matrices.multiply_halves, "products": 2}
    return members


def _plane_members(layout: PackedLayout) -> dict[str, Any]:
    """Of Q8_0 in two planes, or of its upper plane alone."""
    members = _layout_members(layout) | {"hinted": True}
    if layout.join is None:
        return members | {"step": linear.step_of_bounds}
    return members | {"block_bytes": 34, "join": layout.join, "codes": linear.codes_of_planes}


def _layout_members(layout: PackedLayout) -> dict[str, Any]:
    return {
        "groups_per_record": layout.groups_per_record,
        "header_bytes": layout.header_bytes,
        "data_bytes": layout.data_bytes,
        "record_bytes": layout.record_bytes,
        "header_lines": layout.header_bytes // 64,
        "data_lines": layout.data_bytes // 64,
        "activation_lines": layout.groups_per_record * BLOCK_BYTES_PER_TOKEN // 64,
        "zero_shift": layout.zero_shift,
        "zero": 1 << layout.zero_shift if layout.zero_shift else 0,
        "unpack": layout.unpack,
        "scale": layout.scale,
        "pack": layout.pack,
        "hinted": False,  # whether a single token, too, asks for weights ahead
        "low_bytes": layout.low_bytes,
        "low_lines": layout.low_bytes // 64,
        "codes": linear.codes_of_record,
        "step": linear.step_plain,
        "element": embedding.element_plain,
        "keep_parts": matrices.keep_scale,
        "multiply": matrices.multiply,
        "products": 1,
        "group_bytes": layout.record_bytes // layout.groups_per_record,
        "group_lines": -(-layout.record_bytes // layout.groups_per_record // 64),
        "add_products": matrices.add_plain,
    }
