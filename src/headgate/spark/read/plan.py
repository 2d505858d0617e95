"""Describes a query as headgate runs it: operators, and the plans that stay in Catalyst around them."""

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
    """Describes one column of routed input: short name, leaf, and expression over the input plan."""

    name: str
    """``k0 ..``, ``v0 ..``."""
    leaf: Leaf
    value: Column
    """For a value of an aggregate: the buffer of this one record."""


@dataclass(frozen=True)
class Passed:
    """Describes one column of routed input that is passed unchanged: ``v0 ..``, and its expression."""

    name: str
    value: Column


@dataclass(frozen=True)
class InitialState:
    """Describes the initial state of a processor: a batch that becomes part of the first step."""

    plan: Jvm
    """plan node."""
    keys: list[Routed]
    values: list[Passed]
    """``i0 ..``."""


@dataclass(frozen=True)
class AggregatePart:
    """Describes one aggregate function of an operator."""

    function: Jvm
    """aggregate function: the function that Spark runs."""
    name: str
    """As SQL, for people."""
    values: tuple[str, ...]
    """Names of the routed values of its buffer; empty if slots keep the records' values."""


@dataclass(frozen=True)
class AggregateParts:
    """Holds the parts of an Aggregate node in Spark's order; plain Spark's state has this form."""

    grouping: tuple[Jvm, ...]
    """tuple of expression."""
    spans: tuple[tuple[int, int], ...]
    """(first, stop) of each grouping expression's routed keys; no keys for the time."""
    time_index: int
    """Position of the time in `grouping`; -1 without a time."""
    keeps_start: bool
    """Whether the start of a window that came with the rows is a key, in the span of the time."""
    parts: tuple[AggregatePart, ...]
    advance_us: int
    """Microseconds between the starts of windows; 0 without windows, or if the user's plan below
    computes with windows, and so may drop some."""
    order: tuple[Jvm, ...]
    """tuple of attribute: columns that order records for some functions."""


@dataclass(frozen=True)
class JoinPart:
    """Holds the parts of one side of a join."""

    attributes: tuple[Jvm, ...]
    """tuple of attribute: output columns of the side."""
    spans: tuple[tuple[int, int], ...]
    """(first, stop) of each attribute's leaves."""
    compared: tuple[tuple[int, Jvm], ...]
    """tuple of (int, expression): positions of leaves that are only compared, not put out."""
    keys: tuple[Jvm, ...]
    """tuple of expression: operands of the equalities with the other side."""


@dataclass
class PlannedOperator:
    """Describes one stateful operator of a query."""

    id: str
    """``aggregate-0``, ``join-0`` ..., counted from the source upwards."""
    what: str
    """For people: keys, window, aggregates."""
    level: int
    """0 for an operator that reads sources only; else 1 more than the largest level of its parents."""
    upstream: PlannedOperator | None
    """The operator that this one reads in the same job; None for an operator of sources or `feeds`."""
    spec: Spec
    input_plan: Jvm
    """plan node: the operator's input (a window already cut into slices). Its leaf is
    ``upstream.placeholder`` if there is an upstream operator."""
    keys: list[Routed]
    values: Sequence[Routed | Passed]
    """list of Routed for aggregates and joins, of Passed for other operators."""
    slice_start: Column | None
    """Microseconds."""
    output_plan: Jvm
    """plan node: the operator's output, as a plan over ``placeholder``."""
    placeholder: Jvm
    """plan node: leaf for the slots' output: merged buffers of an aggregate, ``k0 ..``, ``t``,
    ``v0 ..``; rows of other operators."""
    raw_schema: T.StructType
    """Spark's schema of the slots' output."""
    key_names: list[str]
    """The grouping expressions as SQL."""
    time_output: int | None
    """Position of the time in the Aggregate's output; None if the output has no time."""
    arrival: Column | None
    """When a record arrived, as a timestamp expression over the input; None if unknown."""
    initial: InitialState | None
    """Initial state of a processor."""
    feeds: tuple[PlannedOperator, ...]
    """Operators whose whole output of a step this one reads, each at its placeholder in `input_plan`:
    there are several of them, or marker rows cannot pass the plan between."""
    node: Jvm | None
    """plan node or None: the node of the query's plan that became the operator."""
    aggregate: AggregateParts | None = None
    """Parts of an aggregate; None for other operators."""
    join: tuple[JoinPart, ...] = ()
    """Left and right side of a join; empty for other operators."""

    @property
    def columns(self) -> str:
        """Input and output columns of an operator that gets rows unchanged; "" for other operators."""
        if not all(isinstance(value, Passed) for value in self.values):
            return ""
        read = self.input_plan if self.node is None else self.node.child()
        return f"{read.schema().catalogString()} -> {self.output_plan.schema().catalogString()}"

    @property
    def shared(self) -> bool:
        """Return whether every slot gets every record, and one slot stores the record."""
        return self.spec.shared

    @property
    def behind_us(self) -> int:
        """Return how far the operator's watermark is behind the job's, because of joins below."""
        return max((op.behind_us + op.delays_us for op in self.parents), default=0)

    @property
    def delays_us(self) -> int:
        """Return how far the operator's output may be behind its watermark, in microseconds."""
        holds_us = self.spec.holds_us
        return int(NEVER_US) // 2 if holds_us is None else -holds_us

    @property
    def parents(self) -> tuple[PlannedOperator, ...]:
        """The operators that this one reads; empty if it reads sources."""
        return self.feeds if self.upstream is None else (self.upstream,)


@dataclass
class PlannedQuery:
    """Describes a query as headgate runs it."""

    operators: list[PlannedOperator]
    """From the source upwards; empty for a stateless query."""
    plan: Jvm
    """plan node: the user's plan above the last operators, over their placeholders."""
    schema: T.StructType
    """Schema of the user's query."""
    mode: OutputMode
    notes: list[str] = field(default_factory=list)
    """Names of nodes that stay in Catalyst above operators, for `explain`."""

    @property
    def chains(self) -> list[list[PlannedOperator]]:
        """Operators in chains; within a chain each operator is the upstream of the next operator."""
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
        """The chains that read sources; other chains read the output of operators."""
        return [chain for chain in self.chains if not chain[0].feeds]

    @property
    def last(self) -> list[PlannedOperator]:
        """The operators that no other operator reads; their output becomes the query's output."""
        read = {id(parent) for op in self.operators for parent in op.parents}
        return [op for op in self.operators if id(op) not in read]


def row_by_row(plan: Jvm) -> bool:
    """Return whether a plan computes each row from one row, so that it may run in the slots' own job.

    Any other plan could run the slots twice, or only some slots: a sort samples its input first.
    """
    children = list(each(plan.children()))
    named = class_name(plan) in ("Project", "Filter", "SubqueryAlias", "View", "ResolvedHint")
    return not children or (named and all(map(row_by_row, children)))


def results_after_us(operators: Sequence[PlannedOperator]) -> dict[str, int]:
    """Return the lengths of windows whose results come out at the window's end, by operator."""
    named = ((op.id, op.spec) for op in operators)
    specs = ((name, spec) for name, spec in named if isinstance(spec, AggregateSpec))
    return {name: us for name, spec in specs if (us := spec.results_after_us) is not None}


def raw_schema(spec: AggregateSpec, values: list[Routed]) -> T.StructType:
    """Return the schema of merged buffers: key leaves, time, value leaves, lists of kept values."""
    fields = [T.StructField(f"k{i}", types.spark_type(x)) for i, x in enumerate(spec.keys)]
    if spec.time is not None:
        fields.append(T.StructField("t", T.LongType()))
    fields += [T.StructField(v.name, types.spark_type(v.leaf)) for v in values]
    for number, kept in enumerate(spec.kept):
        parts = [T.StructField(f"x{i}", types.spark_type(x)) for i, x in enumerate(kept.leaves)]
        fields.append(T.StructField(f"l{number}", T.ArrayType(T.StructType(parts))))
    return T.StructType(fields)
