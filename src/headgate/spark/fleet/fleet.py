"""`hg.Fleet`: many queries in one Spark application, under one budget of slots."""

from __future__ import annotations

import math
import threading
import time
import warnings
from collections import deque
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession

from headgate.control.fleet_registry import fleet_policy
from headgate.control.fleet_view import FleetDecision, FleetPolicy, FleetView
from headgate.control.limits import check_range
from headgate.control.policies.static import Static
from headgate.core.errors import ConfigError, EngineError, EngineGone, nearest
from headgate.core.intents import utility_of
from headgate.core.utility import Shape, Utility
from headgate.journal.fleet import (
    FleetDecided,
    FleetJobChanged,
    FleetRound,
    FleetStart,
)
from headgate.journal.schema import VERSION
from headgate.journal.writer import JournalWriter
from headgate.spark.fleet.hosts import HostLoad, Hosts
from headgate.spark.fleet.member import JobState, Member
from headgate.spark.fleet.probe import Probe
from headgate.spark.fleet.seen import every_s, measured, seen
from headgate.spark.jvm.life import asked
from headgate.spark.query import Query
from headgate.spark.settings.query_settings import QuerySettings
from headgate.spark.start import start
from headgate.spark.writer import Writer

WINDOW_ROUNDS = 6
"""Rounds that intents are measured over: Henge's minute of six times 10 s."""

_FIRST_BATCH_S = 60.0
"""How long a job's first batch is waited for before the next job is started."""

_PATIENCE_S = 20.0
"""How long one job's start may keep the others from their first round. Chosen, not tuned."""

_STARTS_MOST = 3
"""How often a job is started whose Python workers come too late for Spark."""

_POOL = "spark.scheduler.pool"
_MINUTE_S = 60.0
_KEPT_ROUNDS = 10_000


@dataclass(frozen=True)
class FleetLimits:
    """How a fleet runs, whatever its policy."""

    slots: int
    """The budget: slots of all operators of all jobs together; >= 1."""

    round_s: float = 10.0
    """Time between two rounds, in seconds; > 0. Henge 5.1."""

    actions_per_minute: int = 6
    """The most actions within a minute; >= 1."""

    hang_s: float = 60.0
    """How long a job's batch may take before nothing is decided about the job, in seconds; > 0."""

    advise: bool = False
    """Decide and write down, and change nothing."""

    cooldown_s: float = 0.0
    """How long nothing is decided after an action, in seconds; >= 0."""

    def __post_init__(self) -> None:
        check_range("fleet", "slots", self.slots, 1)
        check_range("fleet", "actions_per_minute", self.actions_per_minute, 1)
        for name in ("round_s", "hang_s"):
            check_range("fleet", name, getattr(self, name), 0.0, above=True)
        check_range("fleet", "cooldown_s", self.cooldown_s, 0.0)


@dataclass
class _Prepared:
    """A job that was added before the fleet was started."""

    df: DataFrame
    settings: QuerySettings
    probe: Probe
    utility: Utility


@dataclass
class _Log:
    """What the fleet did, for `Fleet.rounds` and `Fleet.actions`."""

    rounds: deque[FleetRound] = field(default_factory=lambda: deque(maxlen=_KEPT_ROUNDS))
    actions: list[FleetDecided] = field(default_factory=list)
    took_s: deque[float] = field(default_factory=lambda: deque(maxlen=_KEPT_ROUNDS))


class Fleet:
    """Runs many queries under one budget of slots, so that their total utility is as high as it can be.

    Jobs are added and removed before and while the fleet runs. One that fails, hangs or is removed
    in the middle of an action is set aside, and the others go on.

    Parameters
    ----------
    spark : SparkSession
        With ``spark.scheduler.mode`` FAIR, as `hg.session` makes it: each job gets a pool of its own.
    slots : int or "auto"
        The budget; auto is twice the cores granted.
    round_s : float
        Time between two decisions, in seconds.
    policy : str or FleetPolicy
        *henge*, *unified*, or a rival (*equal-shares*, *first-come*, *unmanaged*), with times in
        proportion to the round; or a policy with parameters of one's own.
    journal : path, optional
        Where rounds and decisions are written, one JSON object a line.
    actions_per_minute, hang_s, advise, cooldown_s
        As `FleetLimits`.

    Raises
    ------
    ConfigError
        The session schedules first in, first out, no policy has that name, or a value is out of
        range.
    """

    def __init__(  # noqa: PLR0913 - settings of a fleet, by name
        self,
        spark: SparkSession,
        slots: int | str = "auto",
        *,
        round_s: float = 10.0,
        policy: str | FleetPolicy = "henge",
        journal: str | Path | None = None,
        actions_per_minute: int = 6,
        hang_s: float = 60.0,
        advise: bool = False,
        cooldown_s: float = 0.0,
    ) -> None:
        context = spark.sparkContext
        if context.getConf().get("spark.scheduler.mode", "FIFO") != "FAIR":
            msg = (
                "a fleet shares the cores among its jobs, and this session schedules first in, "
                "first out; make it with hg.session(), or set spark.scheduler.mode to FAIR."
            )
            raise ConfigError(msg)
        self._cores = int(context.defaultParallelism)
        budget = 2 * self._cores if slots == "auto" else slots
        if not isinstance(budget, int):
            msg = f'fleet: slots={slots!r} is no budget; use a whole number from 1 on, or "auto".'
            raise ConfigError(msg)
        self.limits = FleetLimits(budget, round_s, actions_per_minute, hang_s, advise, cooldown_s)
        self.policy = fleet_policy(policy, round_s) if isinstance(policy, str) else policy
        self._spark, self._context = spark, context
        self._hosts, self._loads = Hosts(spark, self._cores), list[HostLoad]()
        self._journal = JournalWriter(journal) if journal is not None else None
        self._lock = threading.RLock()
        self._prepared: dict[str, _Prepared] = {}
        self._starting: dict[str, _Prepared] = {}
        self._members: dict[str, Member] = {}
        self._unstarted: dict[str, str] = {}
        self._log = _Log()
        self._began_s = time.monotonic()
        self._acted_s: deque[float] = deque()
        self._next_action_s = -math.inf
        self._last_rule = ""
        self._over = threading.Event()
        self._thread: threading.Thread | None = None
        self._write(FleetStart(self.policy.name, budget, round_s, VERSION))

    # -- jobs -------------------------------------------------------------------------------------

    def add(self, writer: Writer, priority: float = 1.0, utility: Shape | None = None) -> None:
        """Submit a job: `hg.writeStream(...)` with a name, an SLO, a sink and a checkpoint.

        While the fleet runs it starts at once, and its first batch is waited for (a minute at most).

        Parameters
        ----------
        writer : Writer
            Not started. Its ``slots(start=...)`` is what it begins with.
        priority : float
            Its utility when its SLO is met; > 0.
        utility : Shape, optional
            What a missed SLO is still worth; the knee by default.

        Raises
        ------
        ConfigError
            It has no name, no SLO or a policy of its own, it may become plain Spark or has no stateful
            operator, its batches are too rare, a job of that name is there, or the fleet has been
            stopped.
        """
        name, prepared = self._taken_over(writer, priority, utility)
        with self._lock:
            self._refuse_after_end()
            if name in self._prepared or name in self._starting or self._holds(name):
                msg = f'a job "{name}" is in the fleet already; give this one another name.'
                raise ConfigError(msg)
            self._prepared[name] = prepared
            runs = self._thread is not None
        if runs:
            self._start(name)

    def remove(self, name: str) -> None:
        """Take a job out and stop its query; returns at once, and others do not wait for it.

        Raises
        ------
        ConfigError
            No job has that name.
        """
        with self._lock:
            waiting = self._prepared.pop(name, None) is not None or name in self._starting
            self._starting.pop(name, None)
            if waiting and not self._holds(name):
                return
            member = self._get(name)
        self._leave(member)

    def set_priority(self, name: str, priority: float) -> None:
        """Give a job another priority; used from the next round on."""
        with self._lock:
            prepared = self._prepared.get(name)
            if prepared is None:
                self._get(name).set_priority(priority)
            else:
                prepared.utility = replace(prepared.utility, maximum=priority)

    def query(self, name: str) -> Query:
        """Return the running query of a job."""
        return self._get(name).query

    @property
    def jobs(self) -> dict[str, JobState]:
        """How each job stands to the fleet."""
        self._look()
        with self._lock:
            failed = dict.fromkeys(self._unstarted, JobState.FAILED)
            return failed | {name: member.state for name, member in self._members.items()}

    @property
    def failures(self) -> dict[str, str]:
        """Why each job that failed did, in one line."""
        self._look()
        with self._lock:
            failed = {n: m.why for n, m in self._members.items() if m.state is JobState.FAILED}
            return self._unstarted | failed

    def _holds(self, name: str) -> bool:
        """Return whether a job of that name was started and has not ended."""
        held = self._members.get(name)
        return held is not None and held.state not in (JobState.GONE, JobState.FAILED)

    def _refuse_after_end(self) -> None:
        if self._over.is_set():
            msg = "this fleet has been stopped; make another one."
            raise ConfigError(msg)

    def _leave(self, member: Member, why: str = "removed") -> None:
        member.stop(lambda late: self._note(member, late))
        self._note(member, why)

    def _taken_over(
        self, writer: Writer, priority: float, utility: Shape | None
    ) -> tuple[str, _Prepared]:
        """Return a job's name, and the job with the fleet in charge of its slots.

        Of its SLOs the query keeps the latencies, to report on them: it is steered by none. The
        user's writer stays as it is.
        """
        given = writer.settings
        name, policy = given.name, given.replica_policy or given.policy
        if name is None:
            msg = 'a job of a fleet needs a name; add .queryName("counts") to its writer.'
            raise ConfigError(msg)
        if policy is not None and policy.name != "static":
            msg = (
                f'job "{name}" has the policy {policy.name}, and the fleet decides about slots; leave '
                "out .policy()."
            )
            raise ConfigError(msg)
        if given.fallback != "error":
            msg = f'job "{name}" may become plain Spark, which has no slots; leave out .fallback().'
            raise ConfigError(msg)
        window_s, rhythm_s = WINDOW_ROUNDS * self.limits.round_s, every_s(given.trigger)
        if rhythm_s >= window_s:
            # Between its batches nothing would be known of it, and without that nothing is decided.
            msg = (
                f'job "{name}" runs a batch every {rhythm_s:g} s, and intents are measured over '
                f"{window_s:g} s; use a shorter trigger, or a longer round."
            )
            raise ConfigError(msg)
        probe = Probe(window_s, given.slots.min)
        worth = utility_of(given.slos, priority, utility)
        latencies = tuple(slo for slo in given.slos if slo.is_latency)
        settings = replace(given, policy=Static(), slos=latencies)
        return name, _Prepared(writer.df, settings, probe, worth)

    def _get(self, name: str) -> Member:
        with self._lock:
            if name not in self._members:
                hint = nearest(name, self._members) or f"; it has {', '.join(self._members)}"
                msg = f'no job "{name}" is in the fleet{hint}.'
                raise ConfigError(msg)
            return self._members[name]

    def _start(self, name: str) -> None:
        """Start a job in a pool of its own; one that cannot start raises, and leaves no trace.

        Returns once its first batch is over: Spark fails a query whose Python workers take more than
        10 s to appear, which they do where many jobs start at once. Where they do nevertheless,
        nothing was done yet, and it is started again.
        """
        with self._lock:
            prepared = self._prepared.pop(name, None)
            if prepared is None:
                return  # removed meanwhile
            self._starting[name] = prepared
            self._unstarted.pop(name, None)
        try:
            for _ in range(_STARTS_MOST):
                member = self._started(name, prepared)
                if self._unwanted(name):
                    self._leave(member)
                    return
                member.await_first_batch(_FIRST_BATCH_S)
                if not member.came_too_late or self._unwanted(name):
                    return
        finally:
            with self._lock:
                self._starting.pop(name, None)

    def _unwanted(self, name: str) -> bool:
        """Return whether a job was removed, or the fleet stopped, while the job started."""
        with self._lock:
            return name not in self._starting or self._over.is_set()

    def _started(self, name: str, prepared: _Prepared) -> Member:
        """Return a job whose query was just started."""
        query = self._in_pool(name, prepared)
        try:
            if not query.assignment():
                msg = f'job "{name}" has no stateful operator, so a fleet has no slots to give it.'
                raise ConfigError(msg)
            member = Member(name, query, prepared.probe, prepared.utility, self.limits.hang_s)
            with self._lock:
                self._members[name] = member
        except BaseException:  # an interrupt, too: nobody else knows of the query
            query.stop()
            raise
        self._note(member, "submitted")
        return member

    def _in_pool(self, name: str, prepared: _Prepared) -> Query:
        """Start a query whose thread inherits the pool from the thread that starts it."""
        with asked(self._spark):
            before = self._context.getLocalProperty(_POOL)
            self._context.setLocalProperty(_POOL, name)
            try:
                return start(prepared.df, prepared.settings, prepared.probe.around)
            finally:
                self._context.setLocalProperty(_POOL, before)  # type: ignore[arg-type]

    # -- life -------------------------------------------------------------------------------------

    def start(self) -> Fleet:
        """Start the jobs that were added, and begin to decide.

        A job that cannot start is written down in `failures`, and the others go on; rounds begin
        without one that takes long. An interrupt stops those that were started, and the fleet.

        Raises
        ------
        Exception
            Not one of the jobs could start; the first one's reason.
        ConfigError
            It was started before.
        """
        self._refuse_after_end()
        if self._thread is not None:
            msg = "this fleet runs already; add jobs to it with add()."
            raise ConfigError(msg)
        refused: list[Exception] = []
        try:
            while (name := self._next_or_begin(refused)) is not None:
                try:
                    with self._patience():
                        self._start(name)
                except Exception as error:  # whatever it was, the others have nothing to do with it
                    refused.append(error)
                    with self._lock:
                        self._unstarted[name] = str(error)
                    self._write(FleetJobChanged(name, str(JobState.FAILED), str(error)))
        except (KeyboardInterrupt, SystemExit):
            self.stop()
            raise
        return self

    def _next_or_begin(self, refused: list[Exception]) -> str | None:
        """Return a job that waits to be started; where none does, begin to decide and return None."""
        with self._lock:
            if self._prepared and not self._over.is_set():
                return next(iter(self._prepared))
            if refused and not self._members:
                raise refused[0]
            self._begin()
            return None

    @contextmanager
    def _patience(self) -> Iterator[None]:
        """Begin to decide about the jobs that run, if the start of another one takes too long."""
        timer = threading.Timer(_PATIENCE_S, self._begin_if_any)
        timer.daemon = True
        timer.start()
        try:
            yield
        finally:
            timer.cancel()

    def _begin_if_any(self) -> None:
        with self._lock:
            if self._members and not self._over.is_set():
                self._begin()

    def _begin(self) -> None:
        """Begin with the rounds, unless they have begun."""
        if self._thread is None:
            self._began_s = time.monotonic()
            self._thread = threading.Thread(target=self._run, name="headgate-fleet", daemon=True)
            self._thread.start()

    def stop(self, timeout_s: float = 60.0) -> None:
        """Stop all jobs and the fleet; waits for them at most `timeout_s` in all.

        Raises
        ------
        HeadgateError
            Jobs ended because Spark's JVM did.
        """
        until_s = time.monotonic() + timeout_s
        self._over.set()
        with self._lock:
            thread = self._thread
        if thread is not None:
            thread.join(timeout_s)
        while self._leaving() and time.monotonic() < until_s:
            time.sleep(0.05)
        self._look()
        with self._lock:
            journal, self._journal = self._journal, None
            members = list(self._members.values())
        if journal is not None:
            journal.close()
        for member in members:
            failure = None if member.query.isActive else member.query.exception()
            if isinstance(failure, EngineGone):
                raise failure

    def _leaving(self) -> bool:
        """Ask all jobs to stop that were not asked yet; return whether one still runs or starts."""
        with self._lock:
            starts = bool(self._starting)
            active = [member for member in self._members.values() if member.query.isActive]
        for member in active:
            if member.state is not JobState.LEAVING:
                self._leave(member, "the fleet is stopped")
        return starts or bool(active)

    @property
    def rounds(self) -> list[FleetRound]:
        """What each round saw, oldest first; the last 10,000."""
        return list(self._log.rounds)

    @property
    def actions(self) -> list[FleetDecided]:
        """The decisions that acted (or would have, with `advise`), oldest first."""
        return list(self._log.actions)

    @property
    def rounds_took_s(self) -> list[float]:
        """How long each round took, in seconds of wall time, oldest first."""
        return list(self._log.took_s)

    # -- rounds -----------------------------------------------------------------------------------

    def _run(self) -> None:
        while not self._over.wait(self.limits.round_s):
            began_s = time.perf_counter()
            try:
                self._round()
                self._log.took_s.append(time.perf_counter() - began_s)
            except Exception as error:  # the fleet's thread must outlive whatever a round meets
                self._decided(
                    FleetDecision(reason=f"{type(error).__name__}: {error}", rule="round failed")
                )

    def _round(self) -> None:
        members = self._look()
        steady = {n: m for n, m in members.items() if m.state is JobState.RUNNING}
        view = self._view(members, steady)
        self._write(seen(view, members, self.limits.slots, self._loads))
        late = [name for name, member in steady.items() if member.changing]
        if late:
            self._decided(FleetDecision(rule="changing", reason=f"{', '.join(late)} is changing."))
        elif self._too_many():
            most = self.limits.actions_per_minute
            self._decided(FleetDecision(rule="limit", reason=f"{most} actions in this minute."))
        elif time.monotonic() < self._next_action_s:
            reason = f"less than {self.limits.cooldown_s:g} s since the last action."
            self._decided(FleetDecision(rule="cool-down", reason=reason))
        elif steady:
            self._act(self.policy.decide(view), steady)

    def _look(self) -> dict[str, Member]:
        """Look how each job stands, write down what has changed, and return the jobs."""
        with self._lock:
            for member in self._members.values():
                if member.refresh():
                    self._note(member, member.why)
            return dict(self._members)

    def _view(self, members: Mapping[str, Member], steady: Mapping[str, Member]) -> FleetView:
        """Return what the policy may see: jobs that can be decided about, and slots left for them."""
        round_s = self.limits.round_s
        times = [member.hosts(round_s) for member in members.values()]
        self._loads = self._hosts.loads(times, round_s)
        jobs = {}
        for name, member in steady.items():
            try:
                jobs[name] = measured(member.view())
            except Exception as error:  # one job's trouble is not that of the others
                self._note(member, f"no statistics: {type(error).__name__}: {error}")
        held = sum(
            sum(member.slots.values())
            for name, member in members.items()
            if member.holds_slots or (name in steady and name not in jobs)
        )
        held += self._promised()
        return FleetView(
            time.monotonic() - self._began_s,
            jobs,
            max(0, self.limits.slots - held),
            hosts=len(self._loads),
            hosts_congested=sum(host.congested for host in self._loads),
        )

    def _promised(self) -> int:
        """Return the slots that jobs not started yet will begin with, as far as that is known."""
        with self._lock:
            coming = {n: p for n, p in self._starting.items() if n not in self._members}
            firsts = [one.settings.slots.start for one in (self._prepared | coming).values()]
        return sum(min(4, self._cores) if first == "auto" else int(first) for first in firsts)

    def _too_many(self) -> bool:
        now_s = time.monotonic()
        while self._acted_s and self._acted_s[0] <= now_s - _MINUTE_S:
            self._acted_s.popleft()
        return len(self._acted_s) >= self.limits.actions_per_minute

    def _act(self, decision: FleetDecision, steady: Mapping[str, Member]) -> None:
        """Write a decision down, and carry it out unless the fleet only advises."""
        self._decided(decision)
        if not decision or self.limits.advise:
            return
        self._acted_s.append(time.monotonic())
        self._next_action_s = time.monotonic() + self.limits.cooldown_s
        for name, slots in decision.slots.items():
            refused = steady[name].grant(dict(slots), self.policy.name, decision.reason)
            if refused:
                self._note(steady[name], refused)

    # -- the journal ------------------------------------------------------------------------------

    def _decided(self, decision: FleetDecision) -> None:
        """Write a decision, unless it does nothing and its like was written before."""
        acts = bool(decision) and not self.limits.advise
        event = FleetDecided(
            policy=self.policy.name,
            action=str(decision.action),
            rule=decision.rule,
            reason=decision.reason,
            acts=acts,
            slots={job: dict(slots) for job, slots in decision.slots.items()},
            numbers=dict(decision.numbers),
            time_s=round(time.monotonic() - self._began_s, 3),
        )
        if decision:
            self._log.actions.append(event)
        if decision or decision.rule != self._last_rule:
            self._write(event)
        self._last_rule = decision.rule

    def _note(self, member: Member, why: str) -> None:
        self._write(FleetJobChanged(job=member.name, state=str(member.state), why=why))

    def _write(self, event: FleetStart | FleetRound | FleetDecided | FleetJobChanged) -> None:
        if isinstance(event, FleetRound):
            self._log.rounds.append(event)
        with self._lock:
            if self._journal is None:
                return
            try:
                self._journal.write(event)
            except EngineError as error:  # jobs need their slots also while a disk is full
                warnings.warn(str(error), stacklevel=2)
