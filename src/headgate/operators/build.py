"""Makes the object that runs an operator from the operator's spec."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from headgate.operators.aggregate import AggregateOperator
from headgate.operators.deduplicate import DeduplicateOperator, DeduplicateSpec
from headgate.operators.join.operator import JoinOperator
from headgate.operators.join.spec import JoinSpec
from headgate.operators.kept import KeptOperator, KeptSessionOperator
from headgate.operators.operator import Operator
from headgate.operators.process import ProcessorOperator
from headgate.operators.processor import ProcessorSpec
from headgate.operators.session import SessionOperator
from headgate.operators.spec import AggregateSpec

Spec = AggregateSpec | ProcessorSpec | DeduplicateSpec | JoinSpec


def _aggregate(spec: AggregateSpec) -> Operator:
    of_sessions = spec.time is not None and spec.time.session
    if spec.kept:
        return KeptSessionOperator(spec) if of_sessions else KeptOperator(spec)
    return SessionOperator(spec) if of_sessions else AggregateOperator(spec)


_OPERATORS: Mapping[type[Spec], Callable[[Any], Operator]] = {
    AggregateSpec: _aggregate,
    DeduplicateSpec: DeduplicateOperator,
    JoinSpec: JoinOperator,
    ProcessorSpec: ProcessorOperator,
}


def operator_of(spec: Spec) -> Operator:
    """Return the operator that `spec` describes."""
    return _OPERATORS[type(spec)](spec)


def row_bytes(spec: Spec) -> int:
    """Return the size of an entry, without its strings."""
    return operator_of(spec).layout.table.width * 8
