"""Runs a pipe and its slots from the driver: starts them, cuts epochs, collects reports, ends them."""

from __future__ import annotations

import pickle
import queue
import time
import uuid
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any, Protocol

from headgate.core.assignment import Assignment
from headgate.core.errors import EngineError
from headgate.spark.job.reports import Report
from headgate.spark.jvm.pickled import pickled
from headgate.spark.realtime import words
from headgate.spark.realtime.channels import Channel, hang_up
from headgate.spark.realtime.hosts import SlotHosts
from headgate.spark.realtime.pipe_run import GONE, JOB, JOINED, WAKE, Job, PipeRun
from headgate.spark.realtime.run_slots import (
    ENDS_S,
    PartLost,
    PipeLost,
    RunSlots,
    SlotsLost,
    in_background,
    tell,
)
from headgate.spark.realtime.stopped import find_stopped
from headgate.spark.worker.facts import SlotFacts
from headgate.spark.worker.slot import SlotTask

_STARTS_S, _ANSWERS_S, _REWINDS_S, _LOOK_S = 120.0, 600.0, 10.0, 1.0
_STOPPED_LOOKS = 10
"""Looks of 1 s in a row without a message after which a stopped process counts as lost. Counted in looks,
not seconds, because the driver may have been stopped as well. Chosen, not tuned."""


class Readers(Protocol):
    """Combines the offsets of feeders; implemented by `headgate.spark.realtime.feed.Feeds`."""

    @property
    def readers(self) -> int:
        """Return the number of feeders."""

    @property
    def copies(self) -> int:
        """Return the number of tasks that get copies of a feeder's records."""

    def merged(self, parts: Iterable[str]) -> str:
        """Return the offsets of all feeders together, in the order of their numbers."""


class Pipe:
    """Controls the pipe of a query, and its slots.

    Parameters
    ----------
    job : Job
    feed : Readers
    tasks : mapping of str to SlotTask
        Work of an operator's slots.
    routers : mapping of str to int
        Number of an operator's routers; 0 for an operator that reads other operators: the driver sends
        its records.
    name : str
        Name of the query, for messages.
    hosts : SlotHosts

    Attributes
    ----------
    newest_us : dict of int to int
        Newest event time in the last served epoch, by watermark.
    read_ms : float or None
        Time at which the first record of the last cut epoch was read, since 1970; None without records.
    """

    def __init__(
        self,
        job: Job,
        feed: Readers,
        tasks: Mapping[str, SlotTask],
        routers: Mapping[str, int],
        name: str,
        hosts: SlotHosts,
    ) -> None:
        self._job, self._feed, self._name = job, feed, name
        self._hosts = hosts
        self._routers = routers
        self._tasks, self._broadcasts = {}, dict[int, str]()
        for operator, task in tasks.items():
            # a slot gets the store's credentials from the program that starts it, not by a channel
            self._tasks[operator], files = pickled(replace(task, store={}))
            self._broadcasts |= files
        self._run: PipeRun | None = None
        self._halted = False
        self.read_ms: float | None = None
        self.newest_us: dict[int, int] = {}

    @property
    def has_broadcasts(self) -> bool:
        """Return whether slots read broadcast variables, which are files on the driver's host."""
        return bool(self._broadcasts)

    @property
    def runs(self) -> bool:
        """Return whether the pipe runs; after `SlotsLost` it goes on with new slots."""
        return self._run is not None

    @property
    def is_cut(self) -> bool:
        """Return whether a feeder has cut the next epoch, so that there are records to serve."""
        run = self._run  # the thread of epochs may end it meanwhile
        return run is not None and bool(run.cuts)

    @property
    def processes(self) -> dict[str, int]:
        """Process ids of feeders, slots and programs that start slots, as ``feeder 0``, ``slot 0``."""
        run = self._run  # the thread of epochs may end it meanwhile
        return {} if run is None else {**run.processes, **self._hosts.processes}

    # -- start and end --------------------------------------------------------------------------------

    def start(self, offsets: str, assignments: Mapping[str, Assignment]) -> None:
        """Start slots, and the pipe unless it runs; feeders read from `offsets` on.

        Raises
        ------
        PipeLost
        """
        if self._run is None:
            self._begin(offsets, assignments)
        else:
            self._begin_again(self._run, offsets, assignments)
        self.go(assignments)

    def _begin(self, offsets: str, assignments: Mapping[str, Assignment]) -> None:
        said: queue.SimpleQueue[tuple[Any, ...]] = queue.SimpleQueue()

        def lose_host(why: str) -> None:
            said.put((words.FAILED, PartLost(why)))

        try:
            meeting, door = self._hosts.begin(lose_host)
        except EngineError as error:
            raise PipeLost.of(error) from error
        slots = RunSlots(self._hosts, meeting, self._name)
        run = self._run = PipeRun(meeting, door, f"headgate-{uuid.uuid4()}", said, slots)
        in_background(run.let_in)
        self.have_slots(_slots_of(assignments))
        in_background(partial(run.flow, self._job))
        self._await(
            lambda: (len(run.feeders), len(run.copies)) == (self._feed.readers, self._feed.copies),
            _STARTS_S,
        )
        for feeder in run.feeders.values():
            tell(feeder, (words.BEGIN, offsets, run.copies))
        run.flows = True

    def _begin_again(
        self, run: PipeRun, offsets: str, assignments: Mapping[str, Assignment]
    ) -> None:
        """Start new slots, and have feeders read again from `offsets` on; Spark's job goes on."""
        for number in run.slots.end_all():
            run.processes.pop(self._called(words.SLOT, number), None)
        run.next_serving, run.cuts, run.may_cut = {}, {}, -1
        run.rewound, run.rewinding = run.rewound + 1, set(run.feeders)
        for feeder in run.feeders.values():
            tell(feeder, (words.REWIND, offsets))
        self.have_slots(_slots_of(assignments))
        self._await(lambda: not run.rewinding, _REWINDS_S)

    def stop(self, *, clean: bool) -> None:
        """End the pipe and its slots; if not `clean`, at once and during their work."""
        run, self._run = self._run, None
        if run is None:
            return
        run.closing = True
        if clean:
            slots = [slot.peer for slot in run.slots.every if slot.peer is not None]
            for peer in [*run.feeders.values(), *slots]:
                tell(peer, (words.END,))
            run.ended.wait(ENDS_S)
        for slot in run.slots.every:
            if not (clean and slot.address):  # a slot that is not ready would wait for the driver
                slot.process.kill()
        if not run.ended.is_set():
            self._job.cancel(run.group)
            for peer in run.feeders.values():
                hang_up(peer)
            run.ended.wait(ENDS_S)
        for slot in run.slots.every:
            slot.end()
        run.door.close()
        self._hosts.end(run.meeting)

    def have_slots(self, counts: Mapping[str, int]) -> bool:
        """Start the missing slots, `counts` by operator in total; return whether all slots are ready.

        Raises
        ------
        PipeLost
            A slot has ended before it connected.
        """
        self._look_for_dead(silent=False)
        return self._running.slots.have(counts)

    def _called(self, kind: str, number: Any) -> str:
        """Return the name of a peer, for messages."""
        if kind == words.FEEDER or len(self._tasks) == 1:
            return f"{kind} {number if kind == words.FEEDER else number[1]}"
        return f"{number[0]} {kind} {number[1]}"

    # -- peers ----------------------------------------------------------------------------------------

    @property
    def _running(self) -> PipeRun:
        assert self._run is not None
        return self._run

    def _next(self, timeout_s: float) -> tuple[Any, ...] | None:
        """Return the next message, after handling it if it concerns the whole pipe; None if none comes.

        Raises
        ------
        PipeLost
        """
        run = self._running
        try:
            message = run.said.get(timeout=max(timeout_s, 0.0))
        except queue.Empty:
            return None
        word = message[0]
        if word == JOINED:
            self._take_in(run, *message[1:])
        elif word == words.READY:
            operator, place = message[-1]
            ready = run.slots.get(operator, place)
            if ready is not None:
                ready.address = message[1]
        elif word == words.CUT and message[-1] not in run.rewinding:
            run.cuts[message[-1]] = message[2], message[3]
        elif word == words.REWIND and message[1] == run.rewound:
            run.rewinding.discard(message[-1])
        elif word == words.FAILED:
            _, error, *numbers = message
            if any(run.slots.get(*number) is None for number in numbers):
                return message  # of a slot that was given up
            raise self._loss(run, *numbers).of(error)
        elif word == GONE:
            _, kind, number, why = message
            if kind == words.SLOT and run.slots.get(*number) is None:
                return message  # of a slot that was given up
            self._tell_loss(run, kind, number, why)
        elif word == JOB:
            error = message[1] or EngineError("Spark's job of the pipe has ended.", transient=True)
            raise PipeLost.of(error)
        return message

    def _take_in(self, run: PipeRun, kind: str, number: Any, peer: Channel, said: Any) -> None:
        """Register a peer that has connected."""
        if kind == words.LOST:
            number = run.slots.at(said)
            slot = None if number is None else run.slots.get(*number)
            if slot is not None:
                why = "" if slot.has_ended() else "a router cannot reach it"
                self._tell_loss(run, words.SLOT, number, why)
            return
        if kind == words.COPY:
            run.copies[number] = said
            return
        if kind == words.FEEDER:
            if number in run.feeders:  # the feeder's task has failed, and Spark runs it again
                self._tell_loss(run, kind, number)
            run.feeders[number] = peer
            run.nodes[self._called(kind, number)] = said
            _, said = said
        else:
            operator, place = number
            slot = run.slots.get(operator, place)
            if slot is None:  # the slot was given up before it connected
                hang_up(peer)
                return
            slot.peer = peer
            task, routers = self._tasks[operator], self._routers[operator]
            tell(peer, (words.BEGIN, task, routers, self._broadcasts))
        run.processes[self._called(kind, number)] = said

    def _tell_loss(self, run: PipeRun, kind: str, number: Any, why: str = "") -> None:
        """Raise the error of a lost peer; for a feeder, Spark's job has the cause."""
        if kind == words.FEEDER and run.ended.wait(1.0):
            while True:
                message = run.said.get()
                if message[0] == JOB and message[1] is not None:
                    raise PipeLost.of(message[1])
                if message[0] == JOB:
                    break
        elif kind == words.FEEDER and (failure := self._job.failure(run.group)):
            raise PipeLost.of(failure)  # on a cluster Spark retries the task, and the job goes on
        said = f"is lost ({why})" if why else "ended unexpectedly"
        loss = self._loss(run, number) if kind == words.SLOT else PipeLost
        raise loss.of(PartLost(f"{self._called(kind, number)} of {self._name} {said}."))

    @staticmethod
    def _loss(run: PipeRun, slot: tuple[str, int] | None = None) -> type[PipeLost]:
        """Return the class of a loss: of a slot alone, or of the pipe.

        Between hosts a channel also breaks if a host cannot be reached. Then the whole pipe starts again
        on the remaining hosts.
        """
        lost = None if slot is None else run.slots.get(*slot)
        if lost is None or not run.flows:
            return PipeLost
        return SlotsLost if run.meeting.directory or lost.has_ended() else PipeLost

    def _await(self, reached: Callable[[], bool], limit_s: float) -> None:
        if not reached():
            self._await_message(lambda _: reached(), limit_s)

    def _await_message(self, is_last: Callable[[tuple[Any, ...]], bool], limit_s: float) -> None:
        until_s, looks = time.monotonic() + limit_s, 0
        while True:
            message = self._next(_LOOK_S)
            if message is not None and is_last(message):
                return
            if self._halted:
                raise PipeLost.of(EngineError("the query was stopped meanwhile.", transient=True))
            looks = looks + 1 if message is None else 0
            if message is None:
                self._look_for_dead(silent=True)
                if looks >= _STOPPED_LOOKS:
                    self._look_for_stopped()
                if time.monotonic() > until_s:
                    raise _too_slow(limit_s)

    def _look_for_dead(self, *, silent: bool) -> None:
        """Raise the loss of a slot whose process has ended without a message."""
        dead = self._running.slots.dead(silent=silent)
        if dead is not None:
            self._tell_loss(self._running, words.SLOT, dead)

    def _look_for_stopped(self) -> None:
        """Raise PipeLost if a process is stopped, as by SIGSTOP, since all other processes would wait.

        With several hosts, each host looks for its own processes, and reports a stopped one as a loss.
        """
        run = self._running
        if not run.meeting.directory:
            self._hosts.look_for_stopped(run.nodes)
            return
        found = find_stopped(self.processes)
        if found is not None:
            name, process = found
            msg = f"{name} of {self._name} is stopped (process {process}), and is ended."
            raise PipeLost.of(PartLost(msg))

    # -- epochs ---------------------------------------------------------------------------------------

    def halt(self) -> None:
        """End all waiting, because the query ends; any thread may call this."""
        self._halted = True
        run = self._run
        if run is not None:
            run.said.put((WAKE,))

    def wait(self, timeout_s: float) -> None:
        """Wait until a feeder has cut, the query ends, or the time is over.

        Raises
        ------
        PipeLost
        """
        until_s = time.monotonic() + timeout_s
        while not self.is_cut and (left_s := until_s - time.monotonic()) > 0:
            message = self._next(left_s)
            if message is not None and message[0] == WAKE:
                return

    def let_cut(self, epoch: int, after_s: float) -> None:
        """Let feeders cut an epoch after a time, each as soon as it has a record; once per epoch.

        So feeders cut the epoch while the previous one is committed, without waiting for the driver.
        """
        run = self._running
        if run.may_cut != epoch:
            run.may_cut = epoch
            for feeder in run.feeders.values():
                tell(feeder, (words.CUT, epoch, max(after_s, 0.0), False, {}))

    def cut(
        self, epoch: int, *, still: bool, switch: Mapping[str, Assignment] | None = None
    ) -> str:
        """Cut an epoch at all feeders that have not cut it; return the offsets at its end.

        Parameters
        ----------
        epoch : int
        still : bool
            Feeders send no record after the cut before `go`. False if feeders may cut by themselves.
        switch : mapping of str to Assignment, optional
            Records after the cut go to the slots of these assignments, by operator; all slots are ready.
            They serve from `switched` on. Empty if feeders may cut by themselves.

        Raises
        ------
        PipeLost
        """
        run = self._running
        self.newest_us = {}
        run.next_serving = {
            name: run.slots.seated(name, one.slots) for name, one in (switch or {}).items()
        }
        then = run.slots.routes(switch or {}, run.next_serving)
        assert run.may_cut != epoch or not (still or then)
        for number, feeder in run.feeders.items():
            if number not in run.cuts:
                tell(feeder, (words.CUT, epoch, None, still, then))
        self._await(lambda: len(run.cuts) == len(run.feeders), _ANSWERS_S)
        cuts, run.cuts = run.cuts, {}
        self.read_ms = min((ms for _, ms in cuts.values() if ms is not None), default=None)
        return self._feed.merged(cuts[number][0] for number in sorted(cuts))

    def may_cut(self, epoch: int) -> bool:
        """Return whether feeders may cut an epoch by themselves."""
        return self._running.may_cut == epoch

    def go(
        self, assignments: Mapping[str, Assignment], kept: Mapping[str, int] | None = None
    ) -> None:
        """Let feeders that hold still send records again, to the slots of `assignments`.

        Parameters
        ----------
        assignments : mapping of str to Assignment
        kept : mapping of str to int, optional
            Number of slots that an operator will have soon; started slots up to this number stay.

        Raises
        ------
        PipeLost
        """
        run = self._running
        counts = _slots_of(assignments)
        self._await(lambda: self.have_slots(counts), _STARTS_S)
        run.slots.serving = {name: run.slots.seated(name, count) for name, count in counts.items()}
        routes = run.slots.routes(assignments, run.slots.serving)
        for feeder in run.feeders.values():
            tell(feeder, (words.GO, routes))
        self._end_slots({name: max(n, (kept or {}).get(name, 0)) for name, n in counts.items()})

    def switched(self, kept: Mapping[str, int]) -> None:
        """Put the slots that get records since the last cut in place of those that have served.

        Parameters
        ----------
        kept : mapping of str to int
            Number of slots that an operator has, or will have soon; other slots end.
        """
        self._running.slots.serving |= self._running.next_serving
        self._end_slots(kept)

    def _end_slots(self, counts: Mapping[str, int]) -> None:
        """End the slots that do not serve and are not needed for `counts` slots of each operator."""
        run = self._running
        for number in run.slots.end_spare(counts):
            run.processes.pop(self._called(words.SLOT, number), None)

    def serve(
        self,
        operator: str,
        facts: SlotFacts,
        rows: Mapping[int, bytes] | None = None,
        meanwhile: Callable[[], None] = lambda: None,
    ) -> list[Report]:
        """Have the slots of an operator serve an epoch that is cut; return a report of each slot.

        Parameters
        ----------
        operator : str
        facts : SlotFacts
        rows : mapping of int to bytes, optional
            Records from the driver by slot, as Arrow streams.
        meanwhile : callable, optional
            Called while the slots serve.

        Raises
        ------
        PipeLost
        """
        run = self._running
        serving = run.slots.that_serve(operator)
        shared, own = facts.of_slots(len(serving))
        told = pickle.dumps(shared)
        for number, slot in enumerate(serving):
            assert slot.peer is not None
            if rows is not None and number in rows:
                tell(slot.peer, (words.RECORDS, rows[number]))
            tell(slot.peer, (words.SERVE, told, own[number], number))
        meanwhile()
        reports: dict[int, Report] = {}

        def is_last(message: tuple[Any, ...]) -> bool:
            if message[0] == words.REPORT and run.slots.get(*message[-1]) is not None:
                report, newest_us = message[1], message[2]
                reports[report.slot] = report
                for one, us in newest_us.items():
                    self.newest_us[one] = max(us, self.newest_us.get(one, us))
            return len(reports) == len(serving)

        self._await_message(is_last, _ANSWERS_S)
        return [reports[number] for number in sorted(reports)]


def _slots_of(assignments: Mapping[str, Assignment]) -> dict[str, int]:
    return {operator: one.slots for operator, one in assignments.items()}


def _too_slow(limit_s: float) -> PipeLost:
    return PipeLost.of(PartLost(f"a part of the pipe has not answered within {limit_s:g} s."))
