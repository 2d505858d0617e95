"""Runs the loop of a query in real time: cuts epochs, and acts as Spark's query for callers."""

from __future__ import annotations

import contextlib
import itertools
import json
import threading
import time
import uuid
from collections.abc import Sequence
from typing import Any

from headgate.checkpoint.epochs import first_offsets, write_first_offsets
from headgate.checkpoint.manifest import Manifest
from headgate.core.errors import EngineError
from headgate.spark.job.phases import Phases
from headgate.spark.job.reports import Report
from headgate.spark.jvm.plans import physical
from headgate.spark.realtime.deliveries import MOST_APART, MOST_TOGETHER, Deliveries
from headgate.spark.realtime.feed import Feeds, SourceFeed
from headgate.spark.realtime.new_partitions import NewPartitions
from headgate.spark.realtime.pauses import PipeLosses
from headgate.spark.realtime.run_slots import PipeLost, SlotsLost
from headgate.spark.realtime.work import RealTimeWork
from headgate.spark.step.batch_thread import BrokenOff
from headgate.spark.step.machine import StepMachine
from headgate.spark.worker.failure import is_final, processor_error

_QUIET_S = 1.0
"""Longest sleep of the loop without records and without a wake-up."""


class Epochs:
    """Runs a query's epochs in a separate thread; `Ending` uses it as Spark's query.

    Parameters
    ----------
    machine : StepMachine
    work : RealTimeWork
        `RealTimeWork.begin` has been called.
    interval_s : float
        Least time between two cuts.
    name : str or None
        Name of the query.
    first_batch : int
        Batch number of the first epoch; no batch in Spark's log has it.
    early : bool
        True if outputs are delivered before their epoch is committed.
    """

    def __init__(
        self,
        machine: StepMachine[Report],
        work: RealTimeWork,
        *,
        interval_s: float,
        name: str | None,
        first_batch: int,
        early: bool,
    ) -> None:
        self._machine, self._work = machine, work
        self._interval_s = interval_s
        self.name = name
        self.runId = str(uuid.uuid4())
        self.id = json.loads((machine.checkpoint.path / "metadata").read_bytes())["id"]
        self._batch, self._early = first_batch, early
        self._error: BaseException | None = None
        self._cuts_no_more, self._over = threading.Event(), threading.Event()
        self._begins = threading.Lock()
        self._losses = PipeLosses(work.allowed_failures)
        self._cut_s = self._looks_s = 0.0
        self._deliveries: Deliveries
        self._had_records, self._at_us = True, 0
        """Whether the last epoch had records; its watermark."""
        self._thread = threading.Thread(target=self._run, name="headgate-epochs", daemon=True)

    def start(self) -> None:
        """Start the thread of the loop."""
        self._thread.start()

    # -- as Spark's query -----------------------------------------------------------------------------

    @property
    def isActive(self) -> bool:
        """Return whether the loop runs; after its end a delivery may still run, which `stop` can end."""
        return not self._cuts_no_more.is_set()

    @property
    def status(self) -> dict[str, Any]:
        """Return the state of the loop in the form of Spark's ``status``."""
        waits = self._work.pipe.is_cut
        said = (
            "Processing new data"
            if not self._machine.idle.is_set()
            else "Waiting for data to arrive"
        )
        return {
            "message": said if self.isActive else "Stopped",
            "isDataAvailable": waits,
            "isTriggerActive": self.isActive,
        }

    def exception(self) -> BaseException | None:
        """Return the error that ended the loop, or None."""
        return self._error

    def awaitTermination(self) -> None:
        """Wait for the end; raise the error that ended the loop."""
        self._over.wait()
        if self._error is not None:
            raise self._error

    def stop(self) -> None:
        """End the loop between two epochs; the caller has set `machine.stopping`."""
        self._work.pipe.halt()
        self._over.wait()

    # -- epochs ---------------------------------------------------------------------------------------

    def _run(self) -> None:
        machine, work = self._machine, self._work
        try:
            work.intake.settle_in_alone()
            work.intake.enter()
            self._deliveries = Deliveries(
                machine.threads,
                work.deliver,
                self._note,
                self._begin_delivering,
                MOST_TOGETHER if work.delivers_together else MOST_APART,
            )
            work.record(self._deliveries.took_ms)
            work.before_commit = self._served
            while not machine.stopping.is_set():
                try:
                    self._flow()
                except PipeLost as lost:
                    self._heed(lost.__cause__ or lost, slots_alone=isinstance(lost, SlotsLost))
        except BaseException as error:
            self._error = self._noted(error)
        finally:
            with contextlib.suppress(Exception):
                work.pipe.stop(clean=self._error is None)
            work.close()
            self._cuts_no_more.set()
            self._end_deliveries()
            self._over.set()

    def _begin_delivering(self) -> None:
        """Activate the batches' session in the thread of deliveries, and set the group of its jobs."""
        self._work.intake.enter()
        self._work.spark.sparkContext.setJobGroup(self.runId, "", interruptOnCancel=True)

    def _note(self, manifests: Sequence[Manifest]) -> None:
        self._machine.steps.note_delivered(manifests)
        self._work.delivered = manifests[-1].step

    def _end_deliveries(self) -> None:
        """Wait until all committed outputs are delivered; ignore a failure after an error of the loop."""
        try:
            self._deliveries.close()
        except BaseException as error:
            if self._error is None:
                self._error = self._noted(error)

    def _noted(self, error: BaseException) -> BaseException:
        """Return the error of the query, also if a user's function ended with ``sys.exit``."""
        return error if isinstance(error, BrokenOff) else self._machine.note_failure(error)

    def _heed(self, error: BaseException, *, slots_alone: bool) -> None:
        """Take note of a loss and pause; raise it if a retry cannot help, or after too many losses."""
        if not isinstance(error, Exception) or self._machine.stopping.is_set():
            return
        failed = processor_error(error)
        if failed is not None:
            raise failed from None
        waits_s = self._losses.add(slots_alone=slots_alone)
        if is_final(error):
            raise error
        self._losses.check(error)
        self._work.retry(self._next_number, self._losses.open, error)
        self._machine.stopping.wait(waits_s)

    def _flow(self) -> None:
        """Start the pipe at the committed offsets, and run epochs until the query stops.

        Returns as well when a source has new partitions, which the next pipe reads.
        """
        machine, work, pipe = self._machine, self._work, self._work.pipe
        try:
            self._losses.begins(slots_alone=pipe.runs)
            start = self._start_pipe()
            news = NewPartitions(work.feeds.grown, start)
            while not machine.stopping.is_set():
                # a quiet source brings no epoch that would raise a delivery's error
                self._deliveries.check()
                if news.have_come():
                    pipe.stop(clean=True)
                    return
                if not pipe.is_cut and not self._has_work():
                    self._let_cut()
                    pipe.wait(min(work.rest_s(), _QUIET_S))
                    self._look(quiet=True)
                    if not work.due(work.next_us, 0):
                        continue
                pipe.wait(self._cut_s + self._interval_s - time.monotonic())
                if not machine.stopping.is_set():
                    self._epoch()
        except SlotsLost:
            raise  # feeders and routers go on
        except BaseException:
            pipe.stop(clean=False)
            raise

    def _start_pipe(self) -> str:
        """Start the pipe; return its offsets. A source that does not answer counts as a loss."""
        try:
            start = self._work.feeds.grown(self._committed())
            self._work.start(start)
        except PipeLost:
            raise
        except EngineError as error:
            raise PipeLost.of(error) from error
        return start

    def _look(self, *, quiet: bool) -> None:
        """Carry out commands and request executors, once a second; if quiet, write the journal's line."""
        now_s = time.monotonic()
        if now_s >= self._looks_s:
            self._looks_s = now_s + _QUIET_S
            self._machine.run_commands()
            self._work.arrived()
            self._work.look(quiet=quiet and not self._work.pipe.is_cut)

    def _let_cut(self) -> None:
        """Let feeders cut the next epoch by themselves, unless its cut has to change slots."""
        if not self._can_change():
            left_s = self._cut_s + self._interval_s - time.monotonic()
            self._work.pipe.let_cut(self._next_number, left_s)

    def _served(self, manifest: Manifest) -> None:
        """Let feeders cut the next epoch while a served epoch is committed; deliver early if set."""
        if not self._work.changing:
            left_s = self._cut_s + self._interval_s - time.monotonic()
            self._work.pipe.let_cut(manifest.step + 1, left_s)
        if self._early:
            self._work.put_early(manifest)
            self._deliveries.put_rows(manifest)

    @property
    def _next_number(self) -> int:
        latest = self._machine.latest
        return 0 if latest is None else latest.step + 1

    def _has_work(self) -> bool:
        """Return whether there is work without any new record.

        The first epoch comes at once: its manifest has the offsets at which the query began.
        """
        first = self._machine.latest is None
        return first or self._can_change() or self._follows()

    def _can_change(self) -> bool:
        """Return whether a change of slots is requested, and all its slots have started."""
        return self._work.changing and self._work.pipe.have_slots(self._work.wanted_slots)

    def _follows(self) -> bool:
        """Return whether a timer, or the watermark after the last epoch, has made results due.

        Results that stay due, such as behind another operator's watermark, wait up to `_QUIET_S`.
        """
        if self._work.rest_s() <= 0:
            return True
        is_new = self._had_records or self._work.next_us > self._at_us
        return is_new and self._work.due(self._work.next_us, 0)

    def _committed(self) -> str:
        """Return the committed offsets; before the first commit, those at which the query begins."""
        latest = self._machine.latest
        if latest is not None and any(latest.engine["sources"] or ()):
            return json.dumps(latest.engine["sources"])
        log = self._machine.checkpoint.path
        feeds = self._work.feeds
        numbers = itertools.count()

        def first(feed: SourceFeed, _: str) -> str:
            number = next(numbers)
            kept = first_offsets(log, number) if feed.keeps_first else None
            found = kept or feed.first()
            if feed.keeps_first and kept is None:
                write_first_offsets(log, number, found)
            return found

        with self._begins:  # a caller of `newest` may be here in another thread
            return feeds.each(None, first)

    def _epoch(self) -> None:
        machine, work, pipe = self._machine, self._work, self._work.pipe
        latest, number = machine.latest, self._next_number
        self._deliveries.wait_for_room(machine.stopping)
        self._look(quiet=False)
        changes = not pipe.may_cut(number) and self._can_change()
        still = changes and work.must_hold_still
        switch = work.announce(number - 1) if changes and not still else {}
        if switch and not pipe.have_slots({name: one.slots for name, one in switch.items()}):
            work.changes.withdraw()  # another request wants more slots now
            changes, switch = False, {}
        self._cut_s, clock = time.monotonic(), Phases()
        offsets = pipe.cut(number, still=still, switch=switch)
        clock.lap("cut")
        before, sources = [] if latest is None else latest.engine["sources"], json.loads(offsets)
        at_us = work.next_us
        read_ms = pipe.read_ms or time.time() * 1e3
        manifest = machine.epoch(self._batch, at_us, sources, clock, read_ms=read_ms)
        # only after the commit: results that a lost epoch made due are still due
        self._had_records, self._at_us = sources != before, at_us
        if not self._early:
            self._deliveries.put_rows(manifest)
        self._deliveries.put_committed(manifest)
        self._batch += 1
        self._losses.committed()
        if changes:
            work.change(number + 1, still=still)
        if still:
            pipe.go(work.assignments, work.wanted_slots)
        elif switch:
            pipe.switched(work.wanted_slots)

    def settled(self, wanted: str) -> bool:
        """Return whether the results of all records before the offsets `wanted` are delivered.

        Asked by threads of the user's, so it asks nothing of the pipe, which may be lost just then. A
        requested change of slots puts out no result, and is not waited for.
        """
        latest = self._machine.latest
        if latest is None or not self._machine.idle.is_set():
            return False
        deliveries: Deliveries | None = getattr(self, "_deliveries", None)  # set by the loop
        if deliveries is not None and deliveries.has_failed:
            return False  # the loop gets the error, and ends
        there = json.dumps(latest.engine["sources"])
        return self._work.feeds.reached(there, wanted) and not self._follows()

    def newest(self) -> str:
        """Return the offsets after the sources' newest records."""
        return self._work.feeds.newest(self._committed())

    @property
    def feeds(self) -> Feeds:
        """Return the sources of the query."""
        return self._work.feeds

    @property
    def processes(self) -> dict[str, int]:
        """Process ids of feeders and slots, as ``feeder 0``, ``slot 0``."""
        return self._work.pipe.processes

    def explain(self, extended: bool = False) -> None:
        """Print the plan below the slots."""
        del extended
        print(physical(self._work.intake.stream))
