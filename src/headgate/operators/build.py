"""From what an operator is to the object that runs it."""

from __future__ import annotations

from headgate.operators.aggregate import AggregateOperator
from headgate.operators.deduplicate import DeduplicateOperator, DeduplicateSpec
from headgate.operators.join.operator import JoinOperator
from headgate.operators.join.spec import JoinSpec
from headgate.operators.process import ProcessorOperator
from headgate.operators.processor import ProcessorSpec
from headgate.operators.session import SessionOperator
from headgate.operators.spec import AggregateSpec

Spec = AggregateSpec | ProcessorSpec | DeduplicateSpec | JoinSpec
Operator = AggregateOperator | ProcessorOperator | DeduplicateOperator | JoinOperator


def operator_of(spec: Spec) -> Operator:
    """Return the operator that `spec` describes."""
    if isinstance(spec, AggregateSpec):
        if spec.time is not None and spec.time.session:
            return SessionOperator(spec)
        return AggregateOperator(spec)
    if isinstance(spec, DeduplicateSpec):
        return DeduplicateOperator(spec)
    if isinstance(spec, JoinSpec):
        return JoinOperator(spec)
    return ProcessorOperator(spec)


def row_bytes(spec: Spec) -> int:
    """Return the size of an entry, without its strings."""
    return operator_of(spec).layout.table.width * 8
