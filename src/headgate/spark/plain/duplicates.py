"""Turns keys that plain Spark has seen into records, as if each were a key's first record."""

from __future__ import annotations

from collections.abc import Sequence

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql import types as T

from headgate.operators.deduplicate import DeduplicateSpec
from headgate.operators.spec import NO_TIME_US
from headgate.spark.jvm.expressions import data_type
from headgate.spark.jvm.gateway import Jvm, class_name, each
from headgate.spark.plain.plain_state import PlainState, check_key, flat
from headgate.spark.read import types
from headgate.spark.read.expressions import WATERMARK
from headgate.spark.read.plan import Passed, PlannedOperator, Routed


def of_keys(asked: PlainState, spec: DeduplicateSpec) -> DataFrame:
    """Return the keys of a deduplicating operator as records."""
    operator, node = asked.operator, asked.operator.node
    assert node is not None
    attributes = list(each(node.keys()))
    state = asked.load()
    check_key(operator, state, attributes)
    rows = flat(state, "key", "value")
    keys: list[Routed] = []
    time_us: Column | None = None
    for index, attribute in enumerate(attributes):
        value, kind = F.col(f"s{index}"), data_type(attribute.dataType())
        for leaf, part in types.key_leaves(kind, value):
            keys.append(Routed(f"k{len(keys)}", leaf, part))
    if spec.time is not None:
        time_us = _seen_us(operator, spec, attributes, len(attributes))
    values = [
        Passed(routed.name, F.lit(None).cast(kind.dataType))
        for routed, kind in zip(operator.values, operator.raw_schema.fields, strict=True)
    ]
    return asked.routed(rows, keys, values, time_us)


def _seen_us(
    operator: PlannedOperator, spec: DeduplicateSpec, attributes: Sequence[Jvm], keys: int
) -> Column:
    """Return the event time of a key's record, from which the time of its removal follows."""
    if class_name(operator.node) == "DeduplicateWithinWatermark":
        # Spark's value is the time of the key's removal
        return F.col(f"s{keys}") - F.lit(spec.keep_us)
    if spec.keep_us is None:
        return F.lit(NO_TIME_US)
    timed = next(i for i, a in enumerate(attributes) if a.metadata().contains(WATERMARK))
    time = F.col(f"s{timed}")
    if isinstance(data_type(attributes[timed].dataType()), T.StructType):
        time = time.getField("end")
    return F.coalesce(F.unix_micros(time), F.lit(NO_TIME_US))
