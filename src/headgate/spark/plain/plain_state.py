"""Describes the state that one operator needs from a plain checkpoint, and compares its columns."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql import types as T

from headgate.core.errors import CheckpointError
from headgate.spark.jvm.expressions import data_type
from headgate.spark.jvm.gateway import Jvm, class_name
from headgate.spark.read.plan import Passed, PlannedOperator, Routed
from headgate.spark.step.exchange import routed_columns

Load = Callable[..., DataFrame]
"""Reads the state of the operator, with options of Spark's source."""


@dataclass(frozen=True)
class PlainState:
    """Holds the state that one operator needs from a plain checkpoint."""

    spark: SparkSession
    operator: PlannedOperator
    load: Load
    key_groups: int
    ordered: bool
    """Whether records have an order of their own."""
    watermark_us: int
    """That of the newest batch: what was over by it is not in the state."""

    def routed(
        self,
        rows: DataFrame,
        keys: list[Routed],
        values: Sequence[Routed | Passed],
        start_us: Column | None,
    ) -> DataFrame:
        """Return records over `rows`, with their key group."""
        over = replace(self.operator, keys=keys, values=values, slice_start=start_us, arrival=None)
        columns = routed_columns(over, self.key_groups)
        return rows.select(*(value.alias(name) for name, value in columns.items()))


def flat(state: DataFrame, *structs: str) -> DataFrame:
    """Return the fields of `structs` as columns ``s0 ..``.

    By place: buffers have one name many times, and Spark looks up the fields of a struct by name.
    """
    columns: list[Column] = []
    for name in structs:
        fields = struct_of(state, name).fields
        renamed = [T.StructField(f"s{len(columns) + i}", f.dataType) for i, f in enumerate(fields)]
        whole = F.col(name).cast(T.StructType(renamed))
        columns += [whole.getField(field.name).alias(field.name) for field in renamed]
    return state.select(*columns)


def struct_of(state: DataFrame, name: str) -> T.StructType:
    """Return the type of a column that is a struct."""
    kind = state.schema[name].dataType
    assert isinstance(kind, T.StructType)
    return kind


def fields_of(state: DataFrame, name: str) -> list[tuple[str, T.DataType]]:
    """Return the names and types of the fields of a column that is a struct."""
    return [(field.name, field.dataType) for field in struct_of(state, name).fields]


def named(expressions: Sequence[Jvm]) -> list[tuple[str, T.DataType]]:
    """Return the names and types of expressions; without a name where Spark makes one up."""
    return [
        (
            expression.name() if class_name(expression) == "AttributeReference" else "",
            data_type(expression.dataType()),
        )
        for expression in expressions
    ]


def check_columns(
    what: str, stored: Sequence[tuple[str, T.DataType]], wanted: Sequence[tuple[str, T.DataType]]
) -> None:
    """Refuse a state whose columns are not those of the query.

    `what`: the operator, for people. `stored`, `wanted`: names and types in the checkpoint, and by
    the query; an empty name may be any. Raises `CheckpointError`.
    """
    if len(stored) == len(wanted) and all(
        have[1].simpleString() == want[1].simpleString() and want[0] in ("", have[0])
        for have, want in zip(stored, wanted, strict=True)
    ):
        return
    msg = (
        f"the checkpoint's state has {_listed(stored)} where {what} keeps {_listed(wanted)}; give the "
        "query that wrote it."
    )
    raise CheckpointError(msg)


def _listed(columns: Sequence[tuple[str, T.DataType]]) -> str:
    return ", ".join(f"{name} {kind.simpleString()}".strip() for name, kind in columns) or "nothing"


def check_key(operator: PlannedOperator, state: DataFrame, keys: Sequence[Jvm]) -> None:
    """Refuse a state whose keys are not those of the query, by name and type."""
    check_columns(operator.what, fields_of(state, "key"), named(keys))
