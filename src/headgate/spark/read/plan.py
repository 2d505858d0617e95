"""Describes a query as headgate runs it: operators, and what Catalyst keeps around them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from pyspark.sql import Column
from pyspark.sql import types as T

from headgate.operators.build import Spec
from headgate.operators.spec import NEVER_US, AggregateSpec, Leaf, OutputMode
from headgate.spark.jvm.gateway import Jvm, class_name, each
from headgate.spark.read import types


@dataclass(frozen=True)
class Routed:
    """One column of routed input: its short name, its leaf, its expression over the input plan."""

    name: str
    """``k0 ..``, ``v0 ..``."""
    leaf: Leaf
    value: Column
    """For a value: the record's own buffer."""


@dataclass(frozen=True)
class Passed:
    """One column of routed input that a processor takes as it is: ``v0 ..``, and its expression."""

    name: str
    value: Column


@dataclass(frozen=True)
class InitialState:
    """The initial state of a processor: a batch that joins the first step."""

    plan: Jvm
    """plan node."""
    keys: list[Routed]
    values: list[Passed]
    """``i0 ..``."""


@dataclass(frozen=True)
class AggregatePart:
    """One aggregate function of an operator."""

    function: Jvm
    """aggregate function: What Spark runs for it."""
    name: str
    """As SQL, for people."""
    values: tuple[str, ...]
    """The routed values that stand for its buffer, by name; none where values of records are kept."""


@dataclass(frozen=True)
class AggregateParts:
    """Holds the parts of an Aggregate node in Spark's order; plain Spark's state has this form."""

    grouping: tuple[Jvm, ...]
    """tuple of expression."""
    spans: tuple[tuple[int, int], ...]
    """The routed keys that each of them became, from the first up to the last; none for the time."""
    time_index: int
    """Which of them is the time; -1 where none is."""
    keeps_start: bool
    """Whether the start of a session is a key too."""
    parts: tuple[AggregatePart, ...]
    advance_us: int
    """Between the starts of the windows that every record comes into, microseconds; 0 where a user
    below looks into windows, and may leave some out, or where there are none."""
    order: tuple[Jvm, ...]
    """tuple of attribute: columns that order the records of some of its functions."""


@dataclass(frozen=True)
class JoinPart:
    """Holds the parts of one side of a join."""

    attributes: tuple[Jvm, ...]
    """tuple of attribute: what comes out of it."""
    spans: tuple[tuple[int, int], ...]
    """Their leaves, from the first up to the last."""
    compared: tuple[tuple[int, Jvm], ...]
    """tuple of (int, expression): leaves that are only compared."""
    keys: tuple[Jvm, ...]
    """tuple of expression: what is equal to the other side's."""


@dataclass
class PlannedOperator:
    """One stateful operator of a query."""

    id: str
    """``aggregate-0``, ``join-0`` ..., counted from the source upwards."""
    what: str
    """For people: keys, window, aggregates."""
    level: int
    """Operators of level n read what level n - 1 put out."""
    upstream: PlannedOperator | None
    """None for an operator that reads the source."""
    spec: Spec
    input_plan: Jvm
    """plan node: what the operator reads (a window already cut into slices). Its leaf is
    ``upstream.placeholder`` where there is an upstream operator."""
    keys: list[Routed]
    values: Sequence[Routed | Passed]
    """list of Routed, for a processor of Passed."""
    slice_start: Column | None
    """Microseconds."""
    output_plan: Jvm
    """plan node: what the operator puts out, as a plan over ``placeholder``."""
    placeholder: Jvm
    """plan node: stands for what the slots put out: an aggregate's merged buffers, ``k0 ..``,
    ``t``, ``v0 ..``; a processor's rows."""
    raw_schema: T.StructType
    """Spark's schema of what the slots put out."""
    key_names: list[str]
    """The grouping expressions as SQL."""
    time_output: int | None
    """Position of the time among what the Aggregate puts out, if it is there."""
    arrival: Column | None
    """When a record arrived, as a timestamp expression over the input."""
    initial: InitialState | None
    """A processor's."""
    feeds: tuple[PlannedOperator, ...]
    """Operators whose results of a step it reads once all of them are done, each at its placeholder
    in `input_plan`: where there are several, or what stands between cannot let markers through."""
    node: Jvm | None
    """plan node or None: The node of the query's plan that was read."""
    aggregate: AggregateParts | None = None
    """Parts of an aggregate; None for other operators."""
    join: tuple[JoinPart, ...] = ()
    """Left and right side of a join; empty for other operators."""

    @property
    def columns(self) -> str:
        """Columns of rows that pass an operator as they are, in and out; "" where it has none."""
        if not all(isinstance(value, Passed) for value in self.values):
            return ""
        read = self.input_plan if self.node is None else self.node.child()
        return f"{read.schema().catalogString()} -> {self.output_plan.schema().catalogString()}"

    @property
    def shared(self) -> bool:
        """Return whether every slot gets every record, and one of them stores it."""
        return self.spec.shared

    @property
    def behind_us(self) -> int:
        """Return its watermark's distance behind the job's: a join below puts out older records, too."""
        return max((op.behind_us + op.delays_us for op in self.parents), default=0)

    @property
    def delays_us(self) -> int:
        """Return the age that its output may have beyond its watermark."""
        holds_us = self.spec.holds_us
        return int(NEVER_US) // 2 if holds_us is None else -holds_us

    @property
    def parents(self) -> tuple[PlannedOperator, ...]:
        """The operators that it reads from; none for one that reads sources."""
        return self.feeds if self.upstream is None else (self.upstream,)


@dataclass
class PlannedQuery:
    """A query as headgate runs it."""

    operators: list[PlannedOperator]
    """From the source upwards; empty for a stateless query."""
    plan: Jvm
    """plan node: what the user wrote above the last operators, over their placeholders."""
    schema: T.StructType
    """What the user's query puts out."""
    mode: OutputMode
    notes: list[str] = field(default_factory=list)
    """What stays in Catalyst, for `explain`."""

    @property
    def chains(self) -> list[list[PlannedOperator]]:
        """Operators in chains, each from the source to the query's output."""
        feeding = {id(x.upstream) for x in self.operators}
        chains = []
        for last in self.operators:
            if id(last) in feeding:
                continue
            chain = [last]
            while chain[0].upstream is not None:
                chain.insert(0, chain[0].upstream)
            chains.append(chain)
        return chains

    @property
    def sources(self) -> list[list[PlannedOperator]]:
        """The chains that read sources; the others read what operators put out."""
        return [chain for chain in self.chains if not chain[0].feeds]

    @property
    def last(self) -> list[PlannedOperator]:
        """The operators that no other reads from: what they put out is the query's."""
        read = {id(parent) for op in self.operators for parent in op.parents}
        return [op for op in self.operators if id(op) not in read]


def row_by_row(plan: Jvm) -> bool:
    """Return whether a plan makes its rows one by one, so that it may run within the slots' own job.

    Anything else could run the slots twice, or only some of them: a sort looks at its input first.
    """
    children = list(each(plan.children()))
    named = class_name(plan) in ("Project", "Filter", "SubqueryAlias", "View", "ResolvedHint")
    return not children or (named and all(map(row_by_row, children)))


def results_after_us(operators: Sequence[PlannedOperator]) -> dict[str, int]:
    """Return the lengths of windows whose results are put out when they are over, by operator."""
    named = ((op.id, op.spec) for op in operators)
    specs = ((name, spec) for name, spec in named if isinstance(spec, AggregateSpec))
    return {name: us for name, spec in specs if (us := spec.results_after_us) is not None}


def raw_schema(spec: AggregateSpec, values: list[Routed]) -> T.StructType:
    """Return the schema of merged buffers: key leaves, time, value leaves, lists of what is kept."""
    fields = [T.StructField(f"k{i}", types.spark_type(x)) for i, x in enumerate(spec.keys)]
    if spec.time is not None:
        fields.append(T.StructField("t", T.LongType()))
    fields += [T.StructField(v.name, types.spark_type(v.leaf)) for v in values]
    for number, kept in enumerate(spec.kept):
        parts = [T.StructField(f"x{i}", types.spark_type(x)) for i, x in enumerate(kept.leaves)]
        fields.append(T.StructField(f"l{number}", T.ArrayType(T.StructType(parts))))
    return T.StructType(fields)
