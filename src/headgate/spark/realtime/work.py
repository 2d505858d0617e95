"""Runs the steps of a query in real time: each epoch is served by slots, and committed as a step."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
from pyspark.sql import DataFrame

from headgate.checkpoint.manifest import (
    DELIVERED,
    NEXT_WATERMARK_US,
    REAL_TIME,
    SEEN_WATERMARK_US,
    Manifest,
)
from headgate.core.assignment import Assignment
from headgate.core.errors import UnsupportedQuery
from headgate.operators.spec import NEVER_US
from headgate.spark.job.phases import Phases
from headgate.spark.job.reports import Report
from headgate.spark.jvm.arrow import to_arrow_schema
from headgate.spark.jvm.gateway import Jvm, each
from headgate.spark.jvm.narrow import NarrowPlan
from headgate.spark.jvm.plans import internal_rows, leaf, named_as, no_rows, physical
from headgate.spark.move.copy_thread import OF_EPOCHS, Copier
from headgate.spark.read.plan import PlannedOperator
from headgate.spark.realtime.agents import Agents
from headgate.spark.realtime.epoch_lines import EpochRecorder
from headgate.spark.realtime.feed import Feeds
from headgate.spark.realtime.hosts import OneHost
from headgate.spark.realtime.job import SparkJob
from headgate.spark.realtime.pipe import Pipe
from headgate.spark.realtime.plan import PipePlan
from headgate.spark.realtime.router import by_slot
from headgate.spark.sinks.kafka_sink import KafkaSink
from headgate.spark.sinks.ports import Sink
from headgate.spark.step import exchange
from headgate.spark.step.begun import Begun
from headgate.spark.step.commit import delivers
from headgate.spark.step.output import Outputs
from headgate.spark.step.stateful import StatefulWork


class RealTimeWork(StatefulWork):
    """Runs the steps of epochs; a `Work`.

    Attributes
    ----------
    feeds : Feeds
    pipe : Pipe
    next_us : int
        The watermark of the next epoch.
    delivered : int
        The newest step up to which all outputs are delivered.
    before_commit : callable
        Called with each manifest before its commit.
    """

    has_batches = False

    feeds: Feeds
    pipe: Pipe
    next_us: int
    delivered: int
    before_commit: Callable[[Manifest], None]

    _hosts: OneHost | Agents
    _agents: Agents | None = None

    def prepare_slots(self) -> bool:
        """Start the program that forks slots, if they run on this host; it loads their code meanwhile."""
        if not self._is_local:
            return False
        self._hosts = OneHost([o.spec for o in self.query.operators], self.checkpoint.options)
        return True

    def begin(self, plan: PipePlan, feeds: Feeds, next_us: int) -> None:
        """Make the pipe, without starting it.

        Parameters
        ----------
        plan : PipePlan
        feeds : Feeds
        next_us : int
            The watermark of the first epoch.
        """
        assert isinstance(self.recorder, EpochRecorder)
        self._lines = self.recorder
        operators, name = self.query.operators, self.config.name
        self.feeds, self._plan = feeds, plan
        tasks = {
            one.id: replace(self._tasks[one.id], sender=None, next_operator=None)
            for one in operators
        }
        shared = {one.id for one in operators if one.shared}
        routers = dict.fromkeys(tasks, 0)
        for branch, share in zip(plan.branches, feeds.shares, strict=True):
            routers[branch.operator] += share.count
        self._copy_thread.lags = OF_EPOCHS
        if not self._is_local:
            self._hosts = self._agents = self._agents_of(name)
        try:
            job = SparkJob(self.spark, plan, feeds, shared, self._hosts.meeting, name)
            self.pipe = Pipe(job, feeds, tasks, routers, name, self._hosts)
        except BaseException:
            self.close()
            raise
        if self._agents is not None and self.pipe.has_broadcasts:
            msg = (
                "a broadcast variable in a stateful function is not supported in real time on a cluster "
                "yet; have the function hold the value itself, or leave out trigger(realTime=...)."
            )
            self.close()
            raise UnsupportedQuery(msg)
        self.next_us = next_us
        latest = self.job.latest
        facts = {} if latest is None else latest.engine.get(REAL_TIME, {})
        self._seen_us = int(facts.get(SEEN_WATERMARK_US, next_us))
        self._backlog_ends = ""
        self._newest_us: dict[int, int] = {}
        self._between: dict[str, NarrowPlan | None] = {}
        """By operator: the plan from its parent's rows, or None if it cannot be computed in place."""
        self._routed: dict[str, pa.Schema] = {}
        """By operator: schema of the routed rows of such a plan."""
        self.delivered = -1 if self.job.latest is None else self.job.latest.step

    def start(self, offsets: str) -> None:
        """Start the pipe, from `offsets` on.

        If several sources move one watermark, it stays until all their present records are read. The
        sources are read at different speeds, and one source's times would make another's records late.
        """
        shares = self._plan.shares_watermark(self.feeds.same_as)
        self._backlog_ends = self.feeds.newest(offsets) if shares else ""
        self.changes.withdraw()
        self.pipe.start(offsets, self.assignments)

    @property
    def _is_local(self) -> bool:
        return str(self.spark.sparkContext.master).startswith("local")

    def _agents_of(self, name: str) -> Agents:
        specs = {one.id: one.spec for one in self.query.operators}
        return Agents(
            self.spark, name, self._placements, specs, self.checkpoint.options, self._places()
        )

    def _host_tasks(self) -> Copier:
        """Return the copier of key groups: on a cluster the agents, since the pipe occupies the cores."""
        return self._agents or super()._host_tasks()

    def close(self) -> None:
        """End the programs that start slots, after the last epoch."""
        self._hosts.close()

    @property
    def attempts(self) -> int:
        """One: after a failure records must be read again, and the loop of epochs does this."""
        return 1

    @property
    def allowed_failures(self) -> int:
        """Executions of an epoch before the query fails."""
        return self.config.attempts

    def write_to(self, sink: Sink) -> None:
        """Set the sink, and plan its rows; must be called before the first delivery."""
        self._sink = sink
        self.before_commit = lambda _: None
        self._above: NarrowPlan | None = None
        if isinstance(sink, KafkaSink):
            self._above = self._results.project_rows(sink.in_columns, self.run.path / "results")

    @property
    def delivers_together(self) -> bool:
        """Return whether the sink takes the outputs of several epochs together."""
        return self._above is not None

    def deliver(self, manifests: Sequence[Manifest]) -> None:
        """Write the outputs of epochs to the sink in their order, together if the sink allows it."""
        open_ = [manifest for manifest in manifests if delivers(manifest)]
        sink, narrow = self._sink, self._above
        if narrow is None or not isinstance(sink, KafkaSink):
            for manifest in open_:
                sink.write(manifest.engine["sink_batch"], self.result(Outputs.read(manifest)))
                self.recorder.progress.observe(manifest.spark_batch, self._results.observed())
            return
        if sink.is_early:  # `put_early` has begun the delivery
            sink.settle_early()
        elif (rows := self._rows(narrow, open_)) is not None:
            sink.write_table(open_[-1].engine["sink_batch"], rows)

    def put_early(self, manifest: Manifest) -> None:
        """Begin to deliver an uncommitted epoch if the sink allows it; `deliver` completes the delivery.

        The thread of deliveries would wait for this thread, which writes the manifest meanwhile.
        """
        sink, narrow = self._sink, self._above
        if narrow is not None and isinstance(sink, KafkaSink) and delivers(manifest):
            rows = self._rows(narrow, [manifest])
            if rows is not None:
                sink.begin_early(rows)

    def _rows(self, narrow: NarrowPlan, manifests: Sequence[Manifest]) -> pa.Table | None:
        """Return the sink's rows from the outputs of epochs; None without outputs."""
        found = [Outputs.read(manifest).table(self.checkpoint) for manifest in manifests]
        tables = [table for table in found if table is not None]
        return narrow.rows(pa.concat_tables(tables)) if tables else None

    def record(self, took_ms: Callable[[], float]) -> None:
        """Begin to sum epochs for the journal; `took_ms` returns the time of deliveries."""
        self._lines.follow(self.states, took_ms)

    def look(self, *, quiet: bool) -> None:
        """Start missing agents; if `quiet`, no record waits, and the journal's line is written if due."""
        if self._agents is not None:
            self._agents.look()
        if quiet:
            self._lines.look()
            self._observer.quiet(time.time() * 1e3)

    def rehearse(self) -> None:
        """Plan an empty result, without running it."""
        physical(self._results.stored(Outputs(), self.checkpoint))

    def _put_requested(self, step: int) -> None:
        """Change no assignment: the epoch's records are routed already."""

    @property
    def wanted_slots(self) -> dict[str, int]:
        """Return each operator's number of slots, in force or in its newest change, the larger one."""
        return {
            name: max(self.changes.newest(name).slots, state.assignment.slots)
            for name, state in self.states.items()
        }

    @property
    def assignments(self) -> dict[str, Assignment]:
        """Return the assignments in force, by operator."""
        return {name: state.assignment for name, state in self.states.items()}

    def rest_s(self) -> float:
        """Return the time until the next processing-time timer is due, in seconds."""
        clocked = [min(self.states[o.id].due_us) for o in self.query.operators if o.spec.by_clock]
        return max(min(clocked, default=NEVER_US) / 1e6 - time.time(), 0.0)

    @property
    def must_hold_still(self) -> bool:
        """Return whether a change can come into force only while feeders send no records."""
        return self.migrations.ending

    def announce(self, step: int) -> dict[str, Assignment]:
        """Return the assignments that come into force after the epoch that is cut next.

        Parameters
        ----------
        step : int
            The newest committed step.
        """
        moving = self.migrations.announce(step)
        return moving | self.changes.announce([*filter(self.migrations.governs, self.states)])

    def change(self, step: int, *, still: bool) -> None:
        """Put the announced assignments in force, or, if feeders hold still, the requested ones."""
        before = self.assignments
        if still:
            super()._put_requested(step)
        else:
            self._note_assigned(self.changes.put_announced(), step)
            self._note_assigned(self.migrations.begin(step, still=False), step)
        if self.assignments != before:
            self._lines.flush()

    def compute(self, batch: DataFrame, begun: Begun, attempt: int, clock: Phases) -> list[Report]:
        """Have the slots serve an epoch, one operator after another; return one report of each slot."""
        del batch
        reports: list[Report] = []
        clock.lap("plan")
        for operator in self.query.operators:
            read = [r for r in reports if r.operator in {one.id for one in operator.parents}]
            rows = self._from_driver(operator, read, first=begun.latest is None)
            allowed_us = min([begun.watermark_us, *(r.holds_us for r in read)])
            facts = self._facts(operator, begun, attempt, allowed_us)
            if not operator.parents:
                facts = replace(facts, slot_rate=self.config.slot_rate)
            # the journal's line takes milliseconds; written now, it does not delay the next epoch
            reports += self.pipe.serve(operator.id, facts, rows, self._lines.look)
        clock.lap("slots")
        return reports

    def _leaf_of(self, operator: PlannedOperator, frame: DataFrame) -> Jvm:
        """Return an operator's output, which is small, as a leaf that contains the rows."""
        return named_as(frame, each(operator.placeholder.output()))

    def _from_driver(
        self, operator: PlannedOperator, read: Sequence[Report], *, first: bool
    ) -> dict[int, bytes]:
        """Return the rows of an operator that come from no source, by slot, as Arrow streams.

        They are other operators' output, and in the query's first step a processor's initial state.
        """
        session, key_groups = self.intake.session, self.config.key_groups
        narrow = None if first and operator.initial is not None else self._in_place(operator)
        if narrow is not None:
            table = Outputs.reported(read).table(self.checkpoint)
            if table is None:
                return {}
            return self._to_slots(operator, narrow.rows(table).cast(self._routed[operator.id]))
        if operator.parents:
            frame = self._fed(session, operator, read)
            if first:
                frame = exchange.with_initial(frame, operator, key_groups)
        elif first and operator.initial is not None:
            frame = exchange.initial_rows(session, operator.initial, key_groups)
        else:
            return {}
        return self._to_slots(operator, frame.toArrow())

    def _in_place(self, operator: PlannedOperator) -> NarrowPlan | None:
        """Return the plan that computes an operator's routed rows in place from its parent's rows.

        None if the operator has no parent or several, or the plan is not narrow.
        """
        if operator.id not in self._between:
            found, session = None, self.intake.session
            if len(operator.parents) == 1 and '"udt"' not in operator.parents[0].raw_schema.json():
                (parent,) = operator.parents
                empty = internal_rows(no_rows(session, parent.raw_schema))
                hole = leaf(session, parent.placeholder.output(), empty)
                frame = exchange.fed_input(
                    session, operator, {parent.id: hole}, self.config.key_groups
                )
                file = self.run.path / f"rows-{operator.id}"
                found = NarrowPlan.of(frame, hole, parent.raw_schema, file)
                self._routed[operator.id] = to_arrow_schema(
                    frame.schema, session.conf.get("spark.sql.session.timeZone")
                )
            self._between[operator.id] = found
        return self._between[operator.id]

    def _to_slots(self, operator: PlannedOperator, table: pa.Table) -> dict[int, bytes]:
        """Return routed rows by slot, as Arrow streams."""
        assignment = self.states[operator.id].assignment
        slot_of = np.array(assignment.slot_of, dtype=np.int32)
        return by_slot(table, slot_of, assignment.slots, shared=operator.shared)

    def result(self, outputs: Outputs) -> DataFrame:
        """Return the result of the user's plan on the slots' output, which is small."""
        return self._results.at_hand(outputs, self.checkpoint)

    def manifest(self, begun: Begun, reports: list[Report]) -> Manifest:
        """Return the manifest that commits the epoch, and apply the reports to `states`."""
        made = super().manifest(begun, reports)
        for one, us in self.pipe.newest_us.items():
            self._newest_us[one] = max(us, self._newest_us.get(one, us))
        self._seen_us = max(self._seen_us, self._plan.watermark_us(self._newest_us))
        ends = self._backlog_ends
        if not ends or self.feeds.reached(json.dumps(begun.sources), ends):
            self.next_us, self._backlog_ends = max(self.next_us, self._seen_us), ""
        facts: dict[str, Any] = {NEXT_WATERMARK_US: self.next_us, DELIVERED: self.delivered}
        if self._seen_us > self.next_us:
            facts[SEEN_WATERMARK_US] = self._seen_us
        made = replace(made, engine={**made.engine, REAL_TIME: facts})
        self.before_commit(made)
        return made
