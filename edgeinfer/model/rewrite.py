"""Rewrites of a program that keep its meaning and its bits, so that a backend has less to do. Backends call `fuse`; the listing shows the result."""

from __future__ import annotations

import dataclasses
from collections import Counter

from edgeinfer.model.program import Operation, Program, Value


def fuse(program: Program) -> Program:
    """The program with every rewrite applied that saves a pass over memory or a wait between workers."""
    return order_by_depth(fold_residuals(program))


def order_by_depth(program: Program) -> Program:
    """Operations by their distance from the inputs, otherwise in their order: those that do not depend on each other stand together.

    Workers wait between an operation and what it depends on; of three projections with a norm after each, all are multiplied before any is normed.
    """
    depths: dict[Value, int] = {}
    keys: list[int] = []
    for operation in program.operations:
        depth = 1 + max((depths[value] for value in operation.inputs), default=0)
        depths.update((value, depth) for value in operation.outputs)
        keys.append(depth)
    order = sorted(range(len(keys)), key=keys.__getitem__)
    return dataclasses.replace(program, operations=tuple(program.operations[index] for index in order))


def fold_residuals(program: Program) -> Program:
    """Folds an `add` into the `linear` before it: the sum of a matrix product and a residual is written once, where the product is.

    Only where the `add` directly follows, the product is used by nothing else and is not folded yet.
    The order of the sums stays: product, bias, residual.
    """
    uses = Counter(value for operation in program.operations for value in operation.inputs)
    uses[program.logits] += 1
    operations: list[Operation] = []
    for operation in program.operations:
        folded = _folded(operations[-1], operation, uses) if operations else None
        if folded is None:
            operations.append(operation)
        else:
            operations[-1] = folded
    return dataclasses.replace(program, operations=tuple(operations))


def _folded(linear: Operation, add: Operation, uses: Counter[Value]) -> Operation | None:
    if linear.kind != "linear" or add.kind != "add" or linear.attributes["has_residual"]:
        return None
    product = linear.outputs[0]
    others = tuple(value for value in add.inputs if value != product)
    if len(others) != 1 or uses[product] != 1:
        return None
    return dataclasses.replace(linear, inputs=(*linear.inputs, *others), outputs=add.outputs, attributes={**linear.attributes, "has_residual": True})
