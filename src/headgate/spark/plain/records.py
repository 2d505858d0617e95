"""Turns entries of plain Spark's state into records of headgate's operators, by kind of operator.

Each entry becomes a record that puts its operator into the state of the entry: a window's buffer, a key
that was seen, a row that waits for its partner. So the operator's own step writes the state, and no
second way of writing state is needed (docs/design/0145).
"""

from __future__ import annotations

from pyspark.sql import DataFrame

from headgate.core.errors import CheckpointError, UnsupportedQuery
from headgate.operators.build import Spec
from headgate.operators.deduplicate import DeduplicateSpec
from headgate.operators.join.spec import JoinSpec
from headgate.operators.processor import ProcessorSpec
from headgate.spark.jvm.gateway import class_name
from headgate.spark.plain.aggregates import of_aggregate
from headgate.spark.plain.duplicates import of_keys
from headgate.spark.plain.joins import of_rows_waiting
from headgate.spark.plain.plain_state import PlainState
from headgate.spark.plain.processors import of_variables
from headgate.spark.read.plan import PlannedOperator

_NAMES = {
    "Aggregate": ("stateStoreSave", "sessionWindowStateStoreSaveExec"),
    "Deduplicate": ("dedupe",),
    "DeduplicateWithinWatermark": ("dedupeWithinWatermark",),
    "FlatMapGroupsInPandasWithState": ("applyInPandasWithState",),
    "Join": ("symmetricHashJoin",),
    "TransformWithStateInPySpark": (
        "transformWithStateInPySparkExec",
        "transformWithStateInPandasExec",
    ),
}
"""Spark's names of the operators whose state this module reads, by class of the plan's node."""


def check_name(operator: PlannedOperator, name: str) -> None:
    """Refuse the state of another kind of operator than the query's.

    Raises `CheckpointError`. `UnsupportedQuery`: state of this kind cannot be converted.
    """
    what = operator.what.partition(";")[0]
    known = () if operator.node is None else _NAMES.get(class_name(operator.node), ())
    if not known:
        msg = (
            f"state of {what} cannot be carried between Spark and headgate; aggregates, dropDuplicates, "
            "joins and processors can."
        )
        raise UnsupportedQuery(msg)
    if name not in known:
        msg = (
            f"the checkpoint's state is of {name} where the query has {what}; give the query that "
            "wrote it."
        )
        raise CheckpointError(msg)


def records(asked: PlainState) -> tuple[DataFrame, Spec]:
    """Return records for an operator's state, and the spec of the operator that serves the records.

    Raises `UnsupportedQuery`: Spark's state and headgate's differ in content; `CheckpointError`: the
    state is of another operator.
    """
    spec = asked.operator.spec
    if isinstance(spec, DeduplicateSpec):
        return of_keys(asked, spec), spec
    if isinstance(spec, JoinSpec):
        return of_rows_waiting(asked, spec), spec
    if isinstance(spec, ProcessorSpec):
        return of_variables(asked, spec)
    return of_aggregate(asked), spec
