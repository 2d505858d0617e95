"""Reads one ``dropDuplicates`` or ``dropDuplicatesWithinWatermark`` node: keys, and their duration."""

from __future__ import annotations

from pyspark.errors import PySparkTypeError
from pyspark.sql import Column
from pyspark.sql import functions as F
from pyspark.sql import types as T

from headgate.core.errors import UnsupportedQuery
from headgate.operators.deduplicate import DeduplicateSpec
from headgate.operators.spec import TimeKey
from headgate.spark.jvm.arrow import to_arrow_schema
from headgate.spark.jvm.expressions import column, data_type, known_not_null
from headgate.spark.jvm.gateway import Jvm, class_name, each
from headgate.spark.jvm.plans import analysed, named_as, of_rows, template
from headgate.spark.read import types
from headgate.spark.read.expressions import WATERMARK, event_time_us, seconds
from headgate.spark.read.plan import Passed, PlannedOperator, Routed
from headgate.spark.read.reading import Given, NodeReader, Reading, Taken
from headgate.spark.read.wording import WAY_OUT


class _DeduplicateReader:
    """Reads one node."""

    def __init__(self, reading: Reading, node: Jvm, upstream: PlannedOperator | None) -> None:
        self.reading = reading
        self.spark = reading.spark
        self.node = node
        self.child = node.child()
        self.upstream = upstream
        self.inputs = list(each(self.child.output()))

    def read(self) -> PlannedOperator:
        """Return the operator that the node becomes."""
        names = [a.name() for a in each(self.node.keys())]
        keys = self._keys()
        schema = T.StructType(
            [T.StructField(f"v{i}", data_type(a.dataType())) for i, a in enumerate(self.inputs)]
        )
        time_us, keep_us = self._time()
        placeholder = analysed(template(self.spark, schema))
        spec = DeduplicateSpec(
            keys=tuple(key.leaf for key in keys),
            outputs=self._arrow(schema),
            time=None if time_us is None else TimeKey(0, 1),
            keep_us=keep_us,
            mode=self.reading.mode,
        )
        duration = (
            "for ever" if keep_us is None else f"until the watermark is {seconds(keep_us)} past"
        )
        return self.reading.operator(
            "deduplicate",
            f"{class_name(self.node)} keys {', '.join(names)}; remembered {duration}",
            spec,
            taken=Taken(
                plan=self.child,
                keys=keys,
                values=[Passed(f"v{i}", column(self.spark, a)) for i, a in enumerate(self.inputs)],
                key_names=names,
                slice_start=time_us,
                arrival=self.reading.arrived(self.inputs, self.upstream),
            ),
            given=Given(self._output_plan(placeholder), placeholder, schema),
            upstream=self.upstream,
        )

    def _keys(self) -> list[Routed]:
        keys: list[Routed] = []
        for attribute in each(self.node.keys()):
            value = column(self.spark, attribute)
            for leaf, part in types.key_leaves(data_type(attribute.dataType()), value):
                keys.append(Routed(f"k{len(keys)}", leaf, part))
        return keys

    def _time(self) -> tuple[Column | None, int | None]:
        """Return a record's event time (us), and how long its key is remembered (us; None: for ever)."""
        times = [a for a in self.inputs if a.metadata().contains(WATERMARK)]
        if not times:
            return None, None
        time_us = event_time_us(self.spark, times[0])
        if class_name(self.node) == "DeduplicateWithinWatermark":
            return time_us, times[0].metadata().getLong(WATERMARK) * 1000
        is_key = any(a.exprId().equals(times[0].exprId()) for a in each(self.node.keys()))
        return time_us, 0 if is_key else None

    def _arrow(self, schema: T.StructType) -> object:
        try:
            return to_arrow_schema(schema, timezone="UTC")
        except PySparkTypeError as error:
            msg = f"cannot pass on a column of this stream ({error}); select fewer, {WAY_OUT}."
            raise UnsupportedQuery(msg) from error

    def _output_plan(self, placeholder: Jvm) -> Jvm:
        typed = []
        for index, attribute in enumerate(self.inputs):
            value = F.col(f"v{index}")
            typed.append(
                (value if attribute.nullable() else known_not_null(value)).alias(f"o{index}")
            )
        return named_as(of_rows(self.spark, placeholder).select(*typed), self.inputs)


def _read(reading: Reading, node: Jvm, upstream: PlannedOperator | None) -> PlannedOperator:
    return _DeduplicateReader(reading, node, upstream).read()


READER = NodeReader(("Deduplicate", "DeduplicateWithinWatermark"), _read)
