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
    """Whether the user has set ``headgate.ordered``."""
    watermark_us: int
    """Watermark of the newest batch, before which the state has no entries."""

    def routed(
        self,
        rows: DataFrame,
        keys: list[Routed],
        values: Sequence[Routed | Passed],
        start_us: Column | None,
    ) -> DataFrame:
        """Return records with their key group, from expressions over `rows`."""
        over = replace(self.operator, keys=keys, values=values, slice_start=start_us, arrival=None)
        columns = routed_columns(over, self.key_groups)
        return rows.select(*(value.alias(name) for name, value in columns.items()))


def flat(state: DataFrame, *structs: str) -> DataFrame:
    """Return the fields of `structs` as columns ``s0 ..``.

    The cast goes by position, because buffers may have duplicate names, which Spark cannot look up.
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
    """Return the names and types of expressions; "" for a name that Spark generates."""
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
    """Refuse a state whose columns differ from the query's.

    `what`: the operator, for people. `stored`, `wanted`: names and types in the checkpoint, and in the
    query; "" in `wanted` matches any name. Raises `CheckpointError`.
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
    """Refuse a state whose keys differ from the query's by name or type."""
    check_columns(operator.what, fields_of(state, "key"), named(keys))
