"""Reading one ``transformWithState`` node: its key, its processor, what it puts out."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pyspark.errors import PySparkRuntimeError
from pyspark.serializers import CPickleSerializer
from pyspark.sql import Column
from pyspark.sql import types as T
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.util import PythonEvalType

from headgate.core.errors import UnsupportedQuery
from headgate.engines.spark import types
from headgate.engines.spark.arrow_processor import ArrowProcessor
from headgate.engines.spark.expressions import WAY_OUT
from headgate.engines.spark.gateway import (
    Jvm,
    analysed,
    column,
    data_type,
    each,
    leaf,
    of_rows,
    template,
)
from headgate.engines.spark.plan import Operator, Passed, Routed
from headgate.operators.processor import ProcessorSpec

if TYPE_CHECKING:
    from headgate.engines.spark.logical import QueryReader

NODE = "TransformWithStateInPySpark"


class ProcessorReader:
    """Reads one node."""

    def __init__(self, reader: QueryReader, node: Jvm, upstream: Operator | None = None) -> None:
        self.reader = reader
        self.upstream = upstream
        self.spark = reader.spark
        self.node = node
        self.child = node.child()
        self.grouping = list(each(node.leftAttributes()))
        self.inputs = {a.name(): a for a in each(node.functionExpr().children())}

    def read(self) -> Operator:
        """Return the operator that the node becomes."""
        processor = self._processor()
        names = [attribute.name() for attribute in self.grouping]
        keys = self._keys(processor)
        outputs = T.StructType(
            [T.StructField(a.name(), data_type(a.dataType())) for a in each(self.node.output())]
        )
        spec = ProcessorSpec(
            keys=tuple(key.leaf for key in keys),
            outputs=to_arrow_schema(outputs, timezone="UTC"),
            processor=processor,
            mode=self.reader.mode,
        )
        placeholder = self._placeholder(outputs)
        return Operator(
            id=f"processor-{len(self.reader.operators)}",
            what=f"{type(processor).__name__} keys {', '.join(names)}",
            level=0 if self.upstream is None else self.upstream.level + 1,
            upstream=self.upstream,
            spec=spec,
            input_plan=self.child,
            keys=keys,
            values=self._values(processor),
            slice_start=None,
            output_plan=placeholder,
            placeholder=placeholder,
            raw_schema=T.StructType(
                [T.StructField(f"v{i}", x.dataType) for i, x in enumerate(outputs)]
            ),
            key_names=names,
            arrival=self._arrival(),
        )

    def _processor(self) -> ArrowProcessor:
        node = self.node
        processor = processor_of(node)
        name = type(processor).__name__
        if not isinstance(processor, ArrowProcessor):
            msg = f"cannot run {name} elastically; make it a subclass of hg.ArrowProcessor, {WAY_OUT}."
            raise UnsupportedQuery(msg)
        if node.functionExpr().evalType() != PythonEvalType.SQL_TRANSFORM_WITH_STATE_PYTHON_ROW_UDF:
            msg = (
                f"cannot run {name} with pandas or with an initial state; call transformWithState "
                f"without initialState, {WAY_OUT}."
            )
            raise UnsupportedQuery(msg)
        mode = node.timeMode().toString()
        if mode != "NoTime":
            msg = f'cannot run {name} with time mode {mode}: it has no timers yet; use "None", {WAY_OUT}.'
            raise UnsupportedQuery(msg)
        missing = [a for a in ("keys", "inputs") if not hasattr(processor, a)]
        if missing:
            msg = f"{name} declares no {' and no '.join(missing)}; see hg.ArrowProcessor."
            raise UnsupportedQuery(msg)
        return processor

    def _keys(self, processor: ArrowProcessor) -> list[Routed]:
        if len(processor.keys) != len(self.grouping):
            msg = (
                f"{type(processor).__name__} declares the keys {', '.join(processor.keys.names)}, the "
                f"query groups by {', '.join(a.name() for a in self.grouping)}; make them agree."
            )
            raise UnsupportedQuery(msg)
        keys = []
        for index, attribute in enumerate(self.grouping):
            kind, what = data_type(attribute.dataType()), f"key {attribute.name()}"
            if isinstance(kind, T.StructType):
                msg = f"cannot group a processor by the struct {attribute.name()}; use its fields."
                raise UnsupportedQuery(msg)
            ((found, part),) = types.leaves(kind, column(self.spark, attribute), what)
            keys.append(Routed(f"k{index}", found, types.normalised(found, part)))
        return keys

    def _values(self, processor: ArrowProcessor) -> list[Passed]:
        values = []
        for index, name in enumerate(processor.inputs.names):
            if name not in self.inputs:
                msg = (
                    f'{type(processor).__name__} reads column "{name}", which the stream lacks; it has '
                    f"{', '.join(self.inputs)}."
                )
                raise UnsupportedQuery(msg)
            values.append(Passed(f"v{index}", column(self.spark, self.inputs[name])))
        return values

    def _placeholder(self, outputs: T.StructType) -> Jvm:
        """Return a leaf with the very attributes that the node puts out."""
        empty = of_rows(self.spark, analysed(template(self.spark, outputs)))
        return leaf(self.spark, self.node.output(), empty._jdf.queryExecution().toRdd())

    def _arrival(self) -> Column | None:
        found = self.inputs.get(self.reader.arrival or "")
        return None if found is None or self.upstream is not None else column(self.spark, found)


def processor_of(node: Jvm) -> object:
    """Return the object that was given to ``transformWithState``.

    The plan holds it as PySpark pickled it in this very process; nothing else is ever unpickled here.

    Raises
    ------
    UnsupportedQuery
        It is too large to be in the plan.
    """
    command = node.functionExpr().func().command()
    packed = bytes(command.toArray(command.elemTag()))
    serializer: Any = CPickleSerializer()
    try:
        found = serializer.loads(packed)
    except PySparkRuntimeError as error:  # what is large PySpark has broadcast and let go of
        msg = (
            "cannot run a processor that takes more than 1 MB with all that it holds; let it read what "
            f"is large from a file when it is called, {WAY_OUT}."
        )
        raise UnsupportedQuery(msg) from error
    function, _ = found
    return function.__self__._stateful_processor
