"""Builds the Spark job of a chain of operators, from a batch's rows to the output of the last slots."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from headgate.core.assignment import Assignment
from headgate.spark.job.job import OperatorState
from headgate.spark.jvm.gateway import Jvm
from headgate.spark.jvm.hosts import pinned_rows
from headgate.spark.jvm.planned import Planned, Stage, hole_of
from headgate.spark.jvm.plans import ArrowMap, internal_rows, of_rows
from headgate.spark.move.placement import Placement
from headgate.spark.read.plan import PlannedOperator
from headgate.spark.step import exchange
from headgate.spark.step.preaggregate import Preaggregation


class ChainJob:
    """Builds the RDD of a chain's job; plans again only if slots or preaggregation have changed.

    Parameters
    ----------
    spark : SparkSession    For the plans between two operators.
    slots : mapping of str to ArrowMap    The function that each operator's slots run.
    states : mapping of str to OperatorState    Has the assignments in force.
    preaggregation : Preaggregation    Preaggregation of the first operator.
    alone : bool    True if the columns of batches have no operator's prefix.

    Attributes
    ----------
    into_slots : list of StructType
        Schemas of the rows for each operator's slots; empty before the first plan.
    """

    def __init__(
        self,
        spark: SparkSession,
        chain: list[PlannedOperator],
        slots: Mapping[str, ArrowMap],
        states: Mapping[str, OperatorState],
        placements: Mapping[str, Placement],
        preaggregation: Preaggregation,
        key_groups: int,
        *,
        alone: bool,
    ) -> None:
        self.chain = chain
        self.preaggregation = preaggregation
        self._slots = slots
        self._states = states
        self._placements = placements
        self._key_groups = key_groups
        self._alone = alone
        self._relays = {op.id: exchange.Relay(spark, op, key_groups) for op in chain[1:]}
        self.into_slots: list[StructType] = []
        self._planned_for: Any = None
        self._steps: list[Stage | str] = []

    def rows(self, batch: DataFrame, *, first: bool = False) -> Jvm:
        """Return the RDD of the last slots' output for a batch.

        `first`: True in the query's first step, in which a processor gets its initial state.
        """
        assignments = {op.id: self._states[op.id].assignment for op in self.chain}
        hosts = {n: self._placements[n].hosts(a.slots) for n, a in assignments.items()}
        placed = {name for name, names in hosts.items() if names}
        slots_of = [(a.slots, a.slot_of, dict(a.split)) for a in assignments.values()]
        wanted = (first, self.preaggregation.active, placed, slots_of)
        if wanted != self._planned_for:
            self._planned_for = None  # in case planning fails
            self._steps = self._plan(batch, assignments, placed, first=first)
            self._planned_for = wanted
        rows = internal_rows(batch)
        for step in self._steps:
            if isinstance(step, str):
                rows = pinned_rows(batch.sparkSession, rows, hosts[step])
            else:
                rows = step(rows)
        return rows

    def forget(self) -> None:
        """Drop the plan, because the next batch has another session."""
        self._planned_for = None

    def _plan(
        self,
        batch: DataFrame,
        assignments: Mapping[str, Assignment],
        placed: Collection[str],
        *,
        first: bool,
    ) -> list[Stage | str]:
        """Return the stages of the job; an operator's id between them pins its slots to hosts."""
        spark = batch.sparkSession
        self.into_slots = []
        hole = hole_of(spark, batch.schema)
        head = self.chain[0]
        frame = exchange.chain_input(of_rows(spark, hole), head, alone=self._alone)
        below, frame, hole = self.preaggregation.stages(frame, hole)
        steps: list[Stage | str] = [*below]
        if first:
            frame = exchange.with_initial(frame, head, self._key_groups)
        for operator in self.chain:
            if operator.upstream is not None:
                steps.append(Planned(frame, hole).rows)
                relay = self._relays[operator.id]
                frame, hole = of_rows(spark, relay.plan), relay.hole
            frame = exchange.to_slots(frame, assignments[operator.id], shared=operator.shared)
            if operator.id in placed:
                steps += [Planned(frame, hole).rows, operator.id]
                hole = hole_of(spark, frame.schema)
                frame = of_rows(spark, hole)
            self.into_slots.append(frame.schema)
            frame = self._slots[operator.id].apply(frame)
        steps.append(Planned(frame, hole).rows)
        return steps
