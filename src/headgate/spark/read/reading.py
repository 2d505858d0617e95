"""Declares the readers of plan nodes, with their input and their result.

Each kind of node that becomes an operator has its own file, which ends with its `NodeReader`. The
registry in `logical` lists the readers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace

from pyspark.sql import Column, SparkSession
from pyspark.sql import types as T

from headgate.core.errors import ConfigError, nearest
from headgate.operators.build import Spec
from headgate.operators.spec import OutputMode
from headgate.spark.jvm.expressions import column, data_type
from headgate.spark.jvm.gateway import Jvm, each
from headgate.spark.read.arrival import kafka_arrival
from headgate.spark.read.plan import InitialState, Passed, PlannedOperator, Routed
from headgate.spark.settings.options import ARRIVAL


@dataclass(frozen=True)
class Taken:
    """Holds the input of an operator; see the fields of `PlannedOperator`, `plan` is `input_plan`."""

    plan: Jvm
    keys: list[Routed]
    values: list[Routed] | list[Passed]
    key_names: list[str]
    slice_start: Column | None
    arrival: Column | None
    initial: InitialState | None = None


@dataclass(frozen=True)
class Given:
    """Holds the output of an operator; see the fields of `PlannedOperator`, `plan` is `output_plan`."""

    plan: Jvm
    placeholder: Jvm
    raw_schema: T.StructType
    time_output: int | None = None


@dataclass(frozen=True)
class Reading:
    """Holds the facts of a query that the reader of one node needs."""

    spark: SparkSession
    plan: Jvm
    """plan node: the whole query."""
    mode: OutputMode
    arrival: str | None
    """Name of a timestamp column that says when a record arrived."""
    ordered: tuple[str, ...]
    """Names of the columns that order records; empty: records count in the order of their arrival."""
    number: int
    """Number of the operator that the node becomes, from the source upwards."""
    feeds: tuple[PlannedOperator, ...] = ()
    """See `PlannedOperator.feeds`."""
    node: Jvm | None = None
    """plan node or None: the node in `plan`."""
    whole_windows: bool = False
    """Whether slots keep overlapping windows one by one, and not as slices that windows share."""
    asks_kafka: bool = True
    """Whether Kafka's timestamp is the arrival time if `arrival` names no column."""

    def arrived(
        self, attributes: Iterable[Jvm], upstream: PlannedOperator | None = None
    ) -> Column | None:
        """Return the arrival time of records from sources; None for records of other operators.

        Raises `ConfigError`: the named column is not among `attributes`, or is no timestamp.
        """
        if self.arrival is None or upstream is not None or self.feeds:
            return None
        by_name = {a.name(): a for a in attributes}
        remedy = "name a timestamp column that every first stateful operator reads"
        if self.arrival not in by_name:
            hint = nearest(self.arrival, by_name) or f"; {remedy}."
            msg = f'{ARRIVAL.key}="{self.arrival}" is no column of what a stateful operator reads{hint}'
            raise ConfigError(msg)
        kind = data_type(by_name[self.arrival].dataType())
        if not isinstance(kind, T.TimestampType):
            msg = f'{ARRIVAL.key}="{self.arrival}" is a {kind.simpleString()}; {remedy}.'
            raise ConfigError(msg)
        return column(self.spark, by_name[self.arrival])

    def arrivals(self, plans: Sequence[Jvm]) -> list[tuple[Jvm, Column | None]]:
        """Return the streams of one operator, each with its records' arrival time; raises as `arrived`.

        Kafka's timestamps count only if all streams have one.
        """
        if self.arrival is None and self.asks_kafka and not self.feeds:
            pairs = [kafka_arrival(self.spark, plan) for plan in plans]
            carried = [
                (match[0], column(self.spark, match[1])) for match in pairs if match is not None
            ]
            if len(carried) == len(plans):
                return list(carried)
        return [(plan, self.arrived(each(plan.output()))) for plan in plans]

    def _by_kafka(self, taken: Taken) -> Taken:
        """Return an operator's input; if it reads Kafka, the arrival time is Kafka's timestamp."""
        pair = kafka_arrival(self.spark, taken.plan)
        if pair is None:
            return taken
        return replace(taken, plan=pair[0], arrival=column(self.spark, pair[1]))

    def operator(
        self,
        kind: str,
        what: str,
        spec: Spec,
        *,
        taken: Taken,
        given: Given,
        upstream: PlannedOperator | None = None,
    ) -> PlannedOperator:
        """Return the operator that the node becomes.

        `kind`: first part of the operator's id. `upstream`: see `PlannedOperator.upstream`.
        """
        parents = self.feeds if upstream is None else (upstream,)
        unknown = self.arrival is None and taken.arrival is None
        if unknown and self.asks_kafka and not parents:
            taken = self._by_kafka(taken)
        return PlannedOperator(
            id=f"{kind}-{self.number}",
            what=what,
            level=1 + max((op.level for op in parents), default=-1),
            upstream=upstream,
            spec=spec,
            input_plan=taken.plan,
            keys=taken.keys,
            values=taken.values,
            slice_start=taken.slice_start,
            output_plan=given.plan,
            placeholder=given.placeholder,
            raw_schema=given.raw_schema,
            key_names=taken.key_names,
            time_output=given.time_output,
            arrival=taken.arrival,
            initial=taken.initial,
            feeds=self.feeds,
            node=self.node,
        )


def _streams(node: Jvm) -> bool:
    return bool(node.isStreaming())


@dataclass(frozen=True)
class NodeReader:
    """Turns nodes of one kind into operators."""

    names: tuple[str, ...]
    """Simple names of the nodes' classes."""
    read: Callable[[Reading, Jvm, PlannedOperator | None], PlannedOperator]
    """Takes the reading, a node, and its upstream operator or None; returns the operator that the
    node becomes. Raises UnsupportedQuery."""
    applies: Callable[[Jvm], bool] = field(default=_streams)
    """Returns whether a node of these classes keeps state; by default, if it is streaming."""
