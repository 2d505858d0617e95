"""From what an operator is to the object that runs it."""

from __future__ import annotations

from headgate.operators.aggregate import AggregateOperator
from headgate.operators.process import ProcessorOperator
from headgate.operators.processor import ProcessorSpec
from headgate.operators.spec import AggregateSpec

Spec = AggregateSpec | ProcessorSpec
Operator = AggregateOperator | ProcessorOperator


def operator_of(spec: Spec) -> Operator:
    """Return the operator that `spec` describes."""
    if isinstance(spec, AggregateSpec):
        return AggregateOperator(spec)
    return ProcessorOperator(spec)


def row_bytes(spec: Spec) -> int:
    """Return the size of an entry, without its strings."""
    return operator_of(spec).layout.table.width * 8
