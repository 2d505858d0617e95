"""Turns a query's analysed plan into the graph of its stateless Python stages."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from pyspark.errors import PySparkRuntimeError
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql import types as T

from headgate.core.errors import UnsupportedQuery
from headgate.spark.jvm.evaluation import (
    MAP_IN_PANDAS,
    Evaluation,
    PythonCall,
    command_of,
    settings_of,
)
from headgate.spark.jvm.expressions import alias, column, data_type, tree_patterns
from headgate.spark.jvm.gateway import Jvm, class_name, each, seq
from headgate.spark.jvm.plans import (
    analysed,
    filtered,
    of_rows,
    placeholder,
    project,
    template,
)
from headgate.spark.jvm.userfunctions import function_of
from headgate.spark.read.calls import TOO_LARGE, Round, next_round
from headgate.spark.worker.replica import ARRIVED, ORIGIN, Function
from headgate.spark.worker.scalar import PandasMap

_MAPS = {"MapInArrow": "mapInArrow", "MapInPandas": "mapInPandas"}
_STATEFUL = {
    "Aggregate",
    "TransformWithStateInPySpark",
    "TransformWithState",
    "FlatMapGroupsInPandasWithState",
    "Deduplicate",
    "DeduplicateWithinWatermark",
    "Distinct",
}
_PASSED = {"SubqueryAlias", "View", "ResolvedHint"}
"""Nodes that put out their input unchanged."""

_CARRIED = T.StructType(
    [T.StructField(ARRIVED, T.DoubleType()), T.StructField(ORIGIN, T.IntegerType())]
)
"""Columns of each row between stages: its arrival, and the stage that put it out."""


class NoPythonStage(UnsupportedQuery):
    """Reports a query without a stage that a pool can run."""


@dataclass
class Hole:
    """Describes a leaf of a plan that the rows of a stage replace."""

    stage: str
    leaf: Jvm
    """plan node: puts out the stage's columns, then `_CARRIED`."""


@dataclass
class Stage:
    """Describes one stateless Python function of a query, or several that one stage evaluates."""

    id: str
    """``map-0`` or ``udf-1``, counted from the source upwards."""
    what: str
    """Name and kind of the function."""
    function: Function
    """The user's function of ``mapInArrow``, or an equivalent function for the other kinds."""
    input_plan: Jvm
    """plan node: the stage's input columns, then `_CARRIED`."""
    holes: list[Hole]
    """Leaves of `input_plan` for rows of other stages; empty if the stage reads the source."""
    raw_schema: T.StructType
    """Schema of the replicas' output."""
    feeds: bool = False
    """Whether another stage reads this stage."""

    @property
    def parents(self) -> list[str]:
        """The stages that this stage reads."""
        return list(dict.fromkeys(hole.stage for hole in self.holes))


@dataclass
class Pipeline:
    """Describes a query of stateless Python stages."""

    stages: list[Stage]
    """In an order in which each stage comes after its parents."""
    plan: Jvm
    """plan node: the plan above the last stages, with `holes` as its leaves."""
    holes: list[Hole]

    @property
    def sources(self) -> list[Stage]:
        """The stages that read the source."""
        return [stage for stage in self.stages if not stage.holes]

    @property
    def last(self) -> list[str]:
        """The stages whose rows the sink gets."""
        return list(dict.fromkeys(hole.stage for hole in self.holes))


@dataclass
class _Part:
    """Holds a part of the plan; if it has holes, its last columns are `_CARRIED`."""

    plan: Jvm
    holes: list[Hole] = field(default_factory=list)

    @property
    def output(self) -> list[Jvm]:
        """The user's columns."""
        attributes = list(each(self.plan.output()))
        return attributes[: -len(_CARRIED)] if self.holes else attributes

    @property
    def carried(self) -> list[Jvm]:
        """The columns `_CARRIED`; none without holes."""
        return list(each(self.plan.output()))[-len(_CARRIED) :] if self.holes else []


def read_pipeline(df: DataFrame, policy: str, arrival: str | None = None) -> Pipeline:
    """Return the stages of a query, and the plan above them.

    `arrival`: name of a timestamp column that the first stages read. Raises `UnsupportedQuery`: the
    query keeps state, has no Python stage, or a part that pools cannot run.
    """
    plan = analysed(df)
    if not plan.isStreaming():
        msg = "this DataFrame is not streaming; read its source with spark.readStream."
        raise UnsupportedQuery(msg)
    reader = _Reader(df, policy, arrival)
    top = reader.above(plan)
    if not top.holes:
        msg = (
            f"{policy} has no operator to run: this query has no Python stage. Write one with "
            "mapInArrow, mapInPandas or a UDF, or leave out the policy: Spark runs the query itself."
        )
        raise NoPythonStage(msg)
    return Pipeline(reader.stages, project(df.sparkSession, top.output, top.plan), top.holes)


def has_stages(df: DataFrame) -> bool:
    """Return whether pools could run a query: it is stateless, and has Python stages."""
    try:
        read_pipeline(df, "a pool")
    except UnsupportedQuery:
        return False
    return True


class _Reader:
    """Walks the plan once, from the top."""

    def __init__(self, df: DataFrame, policy: str, arrival: str | None) -> None:
        self.spark = df.sparkSession
        self.policy = policy
        self.stages: list[Stage] = []
        self._arrival = arrival
        self._known: list[tuple[Jvm, Stage]] = []
        (self._python,) = tree_patterns(self.spark, ["PYTHON_UDF"])

    def above(self, plan: Jvm) -> _Part:
        """Add the stages of a plan to `stages`; return the plan above, with holes for their rows."""
        name = class_name(plan)
        if name in _STATEFUL or (name == "Join" and _streams(plan) > 1):
            msg = (
                f'{self.policy} cannot run operator "{name}", which keeps state: any replica may get '
                'any row. Use the policy "streamswitch" for this query.'
            )
            raise UnsupportedQuery(msg)
        if name in _MAPS:
            return self._map(plan, _MAPS[name])
        expressions = list(each(plan.expressions()))
        calls = any(expression.containsPattern(self._python) for expression in expressions)
        if calls and name not in ("Project", "Filter"):
            msg = (
                f"{self.policy} cannot run a Python UDF in {name}; supported: in select, withColumn "
                "and where."
            )
            raise UnsupportedQuery(msg)
        parts = [self.above(child) for child in each(plan.children())]
        if calls:
            return self._calls(plan, parts[0])
        if not any(part.holes for part in parts):
            return _Part(plan)
        return self._kept(plan, name, parts)

    def _kept(self, plan: Jvm, name: str, parts: list[_Part]) -> _Part:
        """Return a node above stages, unchanged except that it also puts out `_CARRIED`."""
        first = parts[0]
        if name in _PASSED:
            return first
        if name == "Project":
            columns = [*each(plan.projectList()), *first.carried]
            return _Part(project(self.spark, columns, first.plan), first.holes)
        if name == "Filter":
            return _Part(filtered(self.spark, plan.condition(), first.plan), first.holes)
        if name != "Union":
            msg = (
                f"{self.policy} cannot keep {name} above a Python stage; supported there: select, "
                "withColumn, where and union."
            )
            raise UnsupportedQuery(msg)
        if not all(part.holes for part in parts):
            msg = (
                f"{self.policy} cannot run a union of which one side has no Python stage; give that "
                "side one too, or leave out the policy."
            )
            raise UnsupportedQuery(msg)
        together = plan.withNewChildren(seq(self.spark, [part.plan for part in parts]))
        return _Part(together, [hole for part in parts for hole in part.holes])

    # -- stages -----------------------------------------------------------------------------------

    def _map(self, node: Jvm, how: str) -> _Part:
        known = self._same(node)
        if known is None:
            below = self._fed(self.above(node.child()))
            function = _function(node)
            what = f"{getattr(function, '__name__', type(function).__name__)} ({how})"
            known = Stage(
                id=f"map-{len(self.stages)}",
                what=what,
                function=self._pandas(node) if how == "mapInPandas" else function,
                input_plan=below.plan,
                holes=below.holes,
                raw_schema=_schema((a.name(), a) for a in each(node.output())),
            )
            self._add(node, known)
        return self._read(known, list(each(node.output())))

    def _pandas(self, node: Jvm) -> PandasMap:
        call = PythonCall(command_of(node.functionExpr()), (0,), {})
        return PandasMap(Evaluation(MAP_IN_PANDAS, (call,), settings_of(self.spark)))

    def _calls(self, node: Jvm, below: _Part) -> _Part:
        """Return a select or where without its UDFs, which become stages, inner calls first."""
        select = class_name(node) == "Project"
        wanted = list(each(node.projectList())) if select else [node.condition()]
        original, own_columns = node.child(), below.output
        while (calls := next_round(self.spark, wanted)) is not None:
            original = calls.evaluated(original)
            output = below.output
            known = self._same(original)
            if known is None:
                known = self._scalar_stage(below, calls, len(output))
                self._add(original, known)
            below = self._read(known, [*output, *calls.results])
            wanted = [calls.replaced(expression) for expression in wanted]
        if select:
            return _Part(project(self.spark, [*wanted, *below.carried], below.plan), below.holes)
        rows = filtered(self.spark, wanted[0], below.plan)
        return _Part(project(self.spark, [*own_columns, *below.carried], rows), below.holes)

    def _scalar_stage(self, below: _Part, calls: Round, width: int) -> Stage:
        fed = self._fed(below)
        function, arguments = calls.stage_of(width)
        inputs = [("c", value) for value in below.output] + [("a", value) for value in arguments]
        fresh = _schema((f"{kind}{n}", value) for n, (kind, value) in enumerate(inputs))
        named = each(analysed(template(self.spark, fresh)).output())
        columns = [
            alias(self.spark, value, new.name(), new.exprId())
            for (_, value), new in zip(inputs, named, strict=True)
        ]
        carried = list(each(fed.plan.output()))[-len(_CARRIED) :]
        results = [(f"r{n}", value) for n, value in enumerate(calls.results)]
        return Stage(
            id=f"udf-{len(self.stages)}",
            what=calls.what,
            function=function,
            input_plan=project(self.spark, [*columns, *carried], fed.plan),
            holes=fed.holes,
            raw_schema=_schema(
                [*((f"c{n}", value) for n, value in enumerate(below.output)), *results]
            ),
        )

    def _same(self, node: Jvm) -> Stage | None:
        """Return a known stage with the same result as `node`: a DataFrame used twice is run once."""
        return next((stage for known, stage in self._known if known.sameResult(node)), None)

    def _add(self, node: Jvm, stage: Stage) -> None:
        for below in self.stages:
            below.feeds |= below.id in stage.parents
        self.stages.append(stage)
        self._known.append((node, stage))

    def _read(self, stage: Stage, output: list[Jvm]) -> _Part:
        """Return the rows of a stage, as the attributes `output`."""
        carried = each(analysed(template(self.spark, _CARRIED)).output())
        schema = T.StructType([*stage.raw_schema.fields, *_CARRIED.fields])
        hole = Hole(stage.id, placeholder(self.spark, schema, seq(self.spark, [*output, *carried])))
        return _Part(hole.leaf, [hole])

    def _fed(self, part: _Part) -> _Part:
        """Return the part as input of a stage: with `_CARRIED` as its last columns."""
        if part.holes:
            return part
        rows = of_rows(self.spark, part.plan)
        rows = rows.withColumn(ARRIVED, arrived_ms(self._arrived(part.plan)))
        return _Part(analysed(rows.withColumn(ORIGIN, F.lit(-1))))

    def _arrived(self, plan: Jvm) -> Column | None:
        """Return when a record arrived, as a timestamp expression over the source's rows."""
        if self._arrival is None:
            return None
        for attribute in each(plan.output()):
            if attribute.name() == self._arrival:
                return column(self.spark, attribute)
        msg = (
            f'the first Python stage reads no column "{self._arrival}"; set headgate.arrival to a '
            "column that the stage reads."
        )
        raise UnsupportedQuery(msg)


def _schema(columns: Iterable[tuple[str, Jvm]]) -> T.StructType:
    return T.StructType(
        [T.StructField(name, data_type(value.dataType())) for name, value in columns]
    )


def _streams(plan: Jvm) -> int:
    return sum(1 for child in each(plan.children()) if child.isStreaming())


def _function(node: Jvm) -> Function:
    """Return the user's function of ``mapInArrow`` or ``mapInPandas``."""
    try:
        function: Function = function_of(node)
    except PySparkRuntimeError as error:  # PySpark has broadcast a large function, and dropped it
        raise UnsupportedQuery(TOO_LARGE) from error
    return function


def arrived_ms(arrival: Column | None) -> Column:
    """Return when a record arrived, in ms since 1970; null if that is unknown."""
    if arrival is None:
        return F.lit(None).cast("double")
    return F.unix_micros(arrival) / F.lit(1000.0)
