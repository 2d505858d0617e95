"""Does the steps of a query in real time: what its slots do in an epoch, and what commits it."""

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
from headgate.spark.realtime.router import as_bytes, to_slots
from headgate.spark.sinks.kafka_sink import KafkaSink
from headgate.spark.sinks.sinks import Sink
from headgate.spark.step import exchange
from headgate.spark.step.begun import Begun
from headgate.spark.step.commit import delivers
from headgate.spark.step.output import Outputs
from headgate.spark.step.stateful import StatefulWork


class RealTimeWork(StatefulWork):
    """Does the steps of epochs; a `Work`.

    Attributes
    ----------
    feeds : Feeds
    pipe : Pipe
    next_us : int
        The watermark of the next epoch.
    delivered : int
        The newest step whose output is out, and all before it.
    before_commit : callable
        Called with a manifest that will be committed.
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
        """Make the pipe, which nothing flows through yet.

        Parameters
        ----------
        plan : PipePlan
        feeds : Feeds
        next_us : int
            The watermark to begin with.
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
        """The plan between an operator and the one that it reads, where it can be computed in place."""
        self._routed: dict[str, pa.Schema] = {}
        """What comes of it."""
        self.delivered = -1 if self.job.latest is None else self.job.latest.step

    def start(self, offsets: str) -> None:
        """Start the pipe behind `offsets`.

        Where several sources move one watermark, it stays until what they have now is read: each is read
        as fast as it comes, and the time of one would make records of another late.
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
        """Return what copies key groups to hosts: agents, since the pipe holds the cores of tasks."""
        return self._agents or super()._host_tasks()

    def close(self) -> None:
        """End what starts slots; there will be no epoch any more."""
        self._hosts.close()

    @property
    def attempts(self) -> int:
        """One: records that were under way must be read again, which the loop of epochs does."""
        return 1

    @property
    def allowed_failures(self) -> int:
        """Executions of an epoch before the query fails."""
        return self.config.attempts

    def write_to(self, sink: Sink) -> None:
        """Take the sink, and make the plan of its rows; to be called before the first delivery."""
        self._sink = sink
        self.before_commit = lambda _: None
        self._above: NarrowPlan | None = None
        if isinstance(sink, KafkaSink):
            self._above = self._results.project_rows(sink.in_columns, self.run.path / "results")

    @property
    def delivers_together(self) -> bool:
        """Return whether the outputs of several epochs go out as one."""
        return self._above is not None

    def deliver(self, manifests: Sequence[Manifest]) -> None:
        """Give the outputs of epochs to the sink, in their order, and together where it takes them so."""
        open_ = [manifest for manifest in manifests if delivers(manifest)]
        sink, narrow = self._sink, self._above
        if narrow is None or not isinstance(sink, KafkaSink):
            for manifest in open_:
                sink.write(manifest.engine["sink_batch"], self.result(Outputs.read(manifest)))
                self.recorder.progress.observe(manifest.spark_batch, self._results.observed())
            return
        if sink.is_early:  # `put_early` has begun it
            sink.settle_early()
        elif (rows := self._rows(narrow, open_)) is not None:
            sink.write_table(open_[-1].engine["sink_batch"], rows)

    def put_early(self, manifest: Manifest) -> None:
        """Begin to put out an epoch that is not committed, where the sink can; `deliver` ends that.

        The thread of deliveries would wait for this one, which has its manifest to write.
        """
        sink, narrow = self._sink, self._above
        if narrow is not None and isinstance(sink, KafkaSink) and delivers(manifest):
            rows = self._rows(narrow, [manifest])
            if rows is not None:
                sink.begin_early(rows)

    def _rows(self, narrow: NarrowPlan, manifests: Sequence[Manifest]) -> pa.Table | None:
        """Return what the plan above the slots makes of the outputs of epochs; None of none."""
        found = [Outputs.read(manifest).table(self.checkpoint) for manifest in manifests]
        tables = [table for table in found if table is not None]
        return narrow.rows(pa.concat_tables(tables)) if tables else None

    def record(self, took_ms: Callable[[], float]) -> None:
        """Begin to sum epochs for the journal; `took_ms` says how long deliveries took."""
        self._lines.follow(self.states, took_ms)

    def look(self, *, quiet: bool) -> None:
        """Look after agents; `quiet`, where no record waits, write the journal's line if it is time."""
        if self._agents is not None:
            self._agents.look()
        if quiet:
            self._lines.look()
            self._observer.quiet(time.time() * 1e3)

    def rehearse(self) -> None:
        """Plan an empty result, and run it not."""
        physical(self._results.stored(Outputs(), self.checkpoint))

    def _put_requested(self, step: int) -> None:
        """Leave assignments as they are: the records of the epoch are routed already."""

    @property
    def wanted_slots(self) -> dict[str, int]:
        """Return the number of slots that each operator has or shall have, whichever is more."""
        return {
            name: max(self.changes.newest(name).slots, state.assignment.slots)
            for name, state in self.states.items()
        }

    @property
    def assignments(self) -> dict[str, Assignment]:
        """Return the assignments in force, by operator."""
        return {name: state.assignment for name, state in self.states.items()}

    def rest_s(self) -> float:
        """Return how long it is until a clock makes something due, in seconds."""
        clocked = [min(self.states[o.id].due_us) for o in self.query.operators if o.spec.by_clock]
        return max(min(clocked, default=NEVER_US) / 1e6 - time.time(), 0.0)

    @property
    def must_hold_still(self) -> bool:
        """Return whether a change can come into force only while no record is under way."""
        return self.migrations.ending

    def announce(self, step: int) -> dict[str, Assignment]:
        """Return the assignments that come into force behind the epoch that is cut.

        Parameters
        ----------
        step : int
            The last one committed.
        """
        moving = self.migrations.announce(step)
        return moving | self.changes.announce([*filter(self.migrations.governs, self.states)])

    def change(self, step: int, *, still: bool) -> None:
        """Put assignments in force: those announced, or, while records hold still, those asked for."""
        before = self.assignments
        if still:
            super()._put_requested(step)
        else:
            self._note_assigned(self.changes.put_announced(), step)
            self._note_assigned(self.migrations.begin(step, still=False), step)
        if self.assignments != before:
            self._lines.flush()

    def compute(self, batch: DataFrame, begun: Begun, attempt: int, clock: Phases) -> list[Report]:
        """Have the slots serve an epoch, one operator after another; return one report of each."""
        del batch
        reports: list[Report] = []
        clock.lap("plan")
        for operator in self.query.operators:
            read = [r for r in reports if r.operator in {one.id for one in operator.parents}]
            rows = self._from_driver(operator, read, first=begun.latest is None)
            allowed_us = min([begun.watermark_us, *(r.holds_us for r in read)])
            facts = self._facts(operator, begun, attempt, allowed_us)
            # a line of a second takes milliseconds, in which the next epoch would wait
            reports += self.pipe.serve(operator.id, facts, rows, self._lines.look)
        clock.lap("slots")
        return reports

    def _leaf_of(self, operator: PlannedOperator, frame: DataFrame) -> Jvm:
        """Return what an operator has put out, which is little, such that Catalyst has it at hand."""
        return named_as(frame, each(operator.placeholder.output()))

    def _from_driver(
        self, operator: PlannedOperator, read: Sequence[Report], *, first: bool
    ) -> dict[int, bytes]:
        """Return the rows that come from no source, by slot, as Arrow streams.

        What an operator reads of others, and, in the query's first step, a processor's initial state.
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
        """Return the plan between an operator and the only one that it reads, to be computed in place.

        None where there is another one, or more than a narrow plan.
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
        parts = to_slots(table, slot_of, assignment.slots, shared=operator.shared)
        return {number: as_bytes(part) for number, part in parts.items() if part.num_rows}

    def result(self, outputs: Outputs) -> DataFrame:
        """Return what the user's plan makes of what slots put out, which is little."""
        return self._results.at_hand(outputs, self.checkpoint)

    def manifest(self, begun: Begun, reports: list[Report]) -> Manifest:
        """Return the manifest that commits the epoch, and take over what its slots did."""
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
