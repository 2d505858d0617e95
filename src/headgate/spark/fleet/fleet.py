"""Implements `hg.Fleet`: many queries in one Spark application, under one budget of slots."""

from __future__ import annotations

import math
import threading
import time
from collections import deque
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from pyspark.sql import SparkSession

from headgate.control.fleet.registry import fleet_policy
from headgate.control.fleet.view import FleetDecision, FleetPolicy, FleetView
from headgate.core.errors import ConfigError, EngineGone, nearest
from headgate.core.utility import Shape
from headgate.journal.fleet import FleetDecided, FleetRound, FleetStart
from headgate.journal.schema import VERSION
from headgate.spark.api.query import Query
from headgate.spark.api.start import start
from headgate.spark.api.writer import Writer
from headgate.spark.fleet.admission import (
    FleetLimits,
    Prepared,
    check_has_slots,
    taken_over,
)
from headgate.spark.fleet.fleet_grants import FleetGrants
from headgate.spark.fleet.fleet_journal import FleetJournal
from headgate.spark.fleet.fleet_round import fleet_round, measured
from headgate.spark.fleet.hosts import HostLoad, Hosts
from headgate.spark.fleet.member import JobState, Member
from headgate.spark.fleet.pool_probe import PoolProbe
from headgate.spark.jvm.gateway import require_session
from headgate.spark.jvm.life import asked
from headgate.spark.step.batch_thread import does_batch

_FIRST_BATCH_S = 60.0
"""Longest wait for a job's first batch before the next job starts, in seconds."""

_PATIENCE_S = 20.0
"""Longest delay of the first round by the start of one job, in seconds. Chosen, not tuned."""

_STARTS_MOST = 3
"""Most starts of a job whose Python workers come too late for Spark."""

_POOL = "spark.scheduler.pool"
_MINUTE_S = 60.0
_SETTLE_S = 0.2
"""Time between two checks for slots that were given up while a grant waits for slots, in seconds."""


class Fleet:
    """Runs many queries under one budget of slots, so that their total utility is as high as possible.

    Jobs can be added and removed before the fleet starts and while it runs. If a job fails, hangs or is
    removed, the fleet goes on with the other jobs.

    Parameters
    ----------
    spark : SparkSession
        With ``spark.scheduler.mode`` FAIR, as `hg.session` sets it: each job gets its own scheduler pool.
    slots : int or "auto"
        The budget; auto is twice the session's cores.
    round_s : float
        Time between two decisions, in seconds.
    policy : str or FleetPolicy
        *henge*, *unified*, or the name of an installed package's policy, with times in proportion to
        the round; or a policy object with your own parameters.
    journal : path, optional
        File for rounds and decisions, one JSON object per line.
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
        require_session(spark, "hg.Fleet: spark")
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
        self._journal = FleetJournal(journal)
        self._hosts, self._loads = Hosts(spark, self._cores), list[HostLoad]()
        self._lock = threading.RLock()
        self._prepared: dict[str, Prepared] = {}
        self._starting: dict[str, Prepared] = {}
        self._members: dict[str, Member] = {}
        self._unstarted: dict[str, str] = {}
        self._grants = FleetGrants(budget, self._members, self._lock, self._journal, self._promised)
        self._acted_s: deque[float] = deque()
        self._next_action_s = -math.inf
        self._over = threading.Event()
        self._thread: threading.Thread | None = None
        self._journal.started(FleetStart(self.policy.name, budget, round_s, VERSION))

    def __repr__(self) -> str:
        state = "over" if self._over.is_set() else "not started" if self._thread is None else "runs"
        with self._lock:
            jobs = dict.fromkeys(self._prepared, "waits") | dict.fromkeys(self._unstarted, "failed")
            jobs |= {name: str(member.state) for name, member in self._members.items()}
        listed = ", ".join(f"{name} {job}" for name, job in jobs.items()) or "no job"
        return f"<Fleet: {state}, {self.limits.slots} slots, policy {self.policy.name}; {listed}>"

    # -- jobs -------------------------------------------------------------------------------------

    def add(self, writer: Writer, priority: float = 1.0, utility: Shape | None = None) -> None:
        """Submit a job: `hg.writeStream(...)` with a name, an SLO, a sink and a checkpoint.

        If the fleet runs, the job starts at once, and this method waits for its first batch, a minute at
        most.

        A job's own policy uses the slots that the fleet grants: a policy such as
        ``.policy("streamswitch")`` steers by the job's latency SLO; a policy such as ``.policy("psps")``
        runs the Python stages of a stateless query on pools of replicas. For a job without a policy the
        fleet sets the slots; a stateless job with Python stages then gets ``psps``.

        Parameters
        ----------
        writer : Writer
            A writer that was not started. ``slots(start=...)`` sets the job's first slots.
        priority : float
            Utility of the job when its SLO is met; > 0.
        utility : Shape, optional
            Utility of a missed SLO; the knee by default.

        Raises
        ------
        ConfigError
            The job has no name or no SLO, or a policy without a latency SLO; it may become plain Spark;
            it has neither operators nor pools; its batches are too rare; the fleet has a job of that
            name, or has been stopped.
        """
        name, prepared = taken_over(writer, priority, utility, self.limits)
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
        """Remove a job and stop its query; return at once, without waiting for the query.

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
        """Change a job's priority from the next round on."""
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
        """Return the state of each job in the fleet."""
        self._look()
        with self._lock:
            failed = dict.fromkeys(self._unstarted, JobState.FAILED)
            return failed | {name: member.state for name, member in self._members.items()}

    @property
    def failures(self) -> dict[str, str]:
        """Return the reason of each job's failure, in one line."""
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

    def _get(self, name: str) -> Member:
        with self._lock:
            if name in self._prepared:
                msg = f'job "{name}" has not been started; call start() of its fleet first.'
                raise ConfigError(msg)
            if name not in self._members:
                known = ", ".join(self._members) or "none"
                hint = nearest(name, self._members) or f"; it has {known}."
                msg = f'no job "{name}" is in the fleet{hint}'
                raise ConfigError(msg)
            return self._members[name]

    def _start(self, name: str) -> None:
        """Start a job in its own scheduler pool; a job that cannot start raises and leaves no trace.

        Waits for the job's first batch: if many jobs start at once, their Python workers take long, and
        Spark fails a query whose workers need more than 10 s. Such a query has done nothing yet, so the
        job is started again.
        """
        with self._lock:
            prepared = self._prepared.pop(name, None)
            if prepared is None:
                return  # removed meanwhile
            self._starting[name] = prepared
            self._unstarted.pop(name, None)
        try:
            for _ in range(_STARTS_MOST):
                member = self._start_query(name, prepared)
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

    def _start_query(self, name: str, prepared: Prepared) -> Member:
        """Return a job whose query was just started."""
        query = self._in_pool(name, prepared)
        try:
            check_has_slots(name, query)
            member = Member(
                name,
                query,
                prepared.probe,
                prepared.utility,
                self.limits.hang_s,
                own_policy=prepared.own_policy,
            )
            with self._lock:
                self._members[name] = member
                self._grants.leave(
                    name
                )  # an earlier start may have a grant, which this query does not know
                self._grants.enter(member)
        except BaseException:  # an interrupt, too: no other code knows the query
            query.stop()
            raise
        self._note(member, "submitted")
        return member

    def _in_pool(self, name: str, prepared: Prepared) -> Query:
        """Start a query whose thread inherits the pool from the thread that starts it."""
        with asked(self._spark):
            before = self._context.getLocalProperty(_POOL)
            self._context.setLocalProperty(_POOL, name)
            try:
                probe = prepared.probe
                if isinstance(probe, PoolProbe):
                    return start(prepared.df, prepared.settings, watch_pools=probe.around)
                return start(prepared.df, prepared.settings, probe.around)
            finally:
                self._context.setLocalProperty(_POOL, before)  # type: ignore[arg-type]

    # -- life -------------------------------------------------------------------------------------

    def start(self) -> Fleet:
        """Start the added jobs, and begin with the rounds.

        A job that cannot start gets an entry in `failures`, and the other jobs go on. Rounds do not wait
        for a job that takes long to start. An interrupt stops the started jobs and the fleet.

        Raises
        ------
        Exception
            No job could start; this is the first job's error.
        ConfigError
            The fleet was started before.
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
                except Exception as error:  # any error: it does not concern the other jobs
                    refused.append(error)
                    with self._lock:
                        self._unstarted[name] = str(error)
                    self._journal.job(name, str(JobState.FAILED), str(error))
        except (KeyboardInterrupt, SystemExit):
            self.stop()
            raise
        return self

    def _next_or_begin(self, refused: list[Exception]) -> str | None:
        """Return a job that waits for its start; if there is none, begin with the rounds, return None."""
        with self._lock:
            if self._prepared and not self._over.is_set():
                return next(iter(self._prepared))
            if refused and not self._members:
                raise refused[0]
            self._begin()
            return None

    @contextmanager
    def _patience(self) -> Iterator[None]:
        """Begin with the rounds for the running jobs if the start of another job takes too long."""
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
            self._journal.began_s = time.monotonic()
            self._thread = threading.Thread(target=self._run, name="headgate-fleet", daemon=True)
            self._thread.start()

    def stop(self, timeout_s: float = 60.0) -> None:
        """Stop all jobs and the fleet, and wait for them, at most `timeout_s` in all.

        If a job's own function calls it in a batch, it returns at once, and jobs end with their batches.

        Raises
        ------
        HeadgateError
            Jobs ended because Spark's JVM did.
        """
        self._over.set()
        if does_batch():
            name = "headgate-fleet-stop"
            threading.Thread(target=self._end, args=(timeout_s,), name=name, daemon=True).start()
        elif (failure := self._end(timeout_s)) is not None:
            raise failure

    def _end(self, timeout_s: float) -> EngineGone | None:
        """Stop all jobs and wait for them; return the error if they ended because Spark's JVM did."""
        until_s = time.monotonic() + timeout_s
        with self._lock:
            thread = self._thread
        if thread is not None:
            thread.join(timeout_s)
        while self._ask_all_to_stop() and time.monotonic() < until_s:
            time.sleep(0.05)
        self._look()
        with self._lock:
            members = list(self._members.values())
        self._journal.close()
        for member in members:
            failure = None if member.query.isActive else member.query.exception()
            if isinstance(failure, EngineGone):
                return failure
        return None

    def _ask_all_to_stop(self) -> bool:
        """Ask each job to stop, once; return whether a job still runs or starts."""
        with self._lock:
            starts = bool(self._starting)
            active = [member for member in self._members.values() if member.query.isActive]
        for member in active:
            if member.state is not JobState.LEAVING:
                self._leave(member, "the fleet is stopped")
        return starts or bool(active)

    @property
    def rounds(self) -> list[FleetRound]:
        """The observation of each round, oldest first; the last 10,000."""
        return list(self._journal.rounds)

    @property
    def actions(self) -> list[FleetDecided]:
        """The decisions that acted (or would have, with `advise`), oldest first."""
        return list(self._journal.actions)

    @property
    def rounds_took_s(self) -> list[float]:
        """Duration of each round, in seconds of wall time, oldest first."""
        return list(self._journal.took_s)

    @property
    def grants(self) -> dict[str, dict[str, int]]:
        """The most slots that each operator of each job may hold."""
        return self._grants.granted

    def set_budget(self, slots: int) -> None:
        """Change the fleet's budget; if it is smaller than the grants, jobs give up slots.

        Jobs of the least priority give up slots first; an operator keeps one slot.

        Raises
        ------
        ConfigError
            The budget is less than 1.
        """
        self.limits = replace(self.limits, slots=slots)
        self._grants.set_budget(slots)

    # -- rounds -----------------------------------------------------------------------------------

    def _run(self) -> None:
        while not self._wait_for_round():
            began_s = time.perf_counter()
            try:
                self._round()
                self._journal.took_s.append(time.perf_counter() - began_s)
            except Exception as error:  # the fleet's thread must survive every error of a round
                self._note_decision(
                    FleetDecision(reason=f"{type(error).__name__}: {error}", rule="round failed")
                )

    def _wait_for_round(self) -> bool:
        """Wait until the next round, and settle waiting grants; return whether the fleet has ended."""
        until_s = time.monotonic() + self.limits.round_s
        while (left_s := until_s - time.monotonic()) > 0.0 and not self._over.is_set():
            self._over.wait(min(left_s, _SETTLE_S) if self._grants.waits else left_s)
            if self._grants.waits:
                self._grants.settle()
        return self._over.is_set()

    def _round(self) -> None:
        members = self._look()
        self._grants.settle()
        steady = {n: m for n, m in members.items() if m.state is JobState.RUNNING}
        view = self._view(members, steady)
        if not self.limits.advise and self._grants.take_unspent(view, steady, self.limits.round_s):
            view = self._view(members, steady)
        self._journal.round(fleet_round(view, members, self.limits.slots, self.grants, self._loads))
        late = [name for name, member in steady.items() if member.changing(self._grants.of(name))]
        if late:
            self._note_decision(
                FleetDecision(rule="changing", reason=f"{', '.join(late)} is changing.")
            )
            return
        self._grants.forget_waiting()
        if self._too_many():
            most = self.limits.actions_per_minute
            self._note_decision(
                FleetDecision(rule="limit", reason=f"{most} actions in this minute.")
            )
        elif time.monotonic() < self._next_action_s:
            reason = f"less than {self.limits.cooldown_s:g} s since the last action."
            self._note_decision(FleetDecision(rule="cool-down", reason=reason))
        elif steady:
            self._act(self.policy.decide(view), steady)

    def _look(self) -> dict[str, Member]:
        """Update each job's state, write changes into the journal, and return the jobs."""
        with self._lock:
            for member in self._members.values():
                if member.refresh():
                    self._note(member, member.why)
                self._grants.enter(member)
            return dict(self._members)

    def _view(self, members: Mapping[str, Member], steady: Mapping[str, Member]) -> FleetView:
        """Return the policy's view: the steady jobs with measurements, and the free slots."""
        round_s = self.limits.round_s
        times = [member.hosts(round_s) for member in members.values()]
        self._loads = self._hosts.loads(times, round_s)
        jobs = {}
        for name, member in steady.items():
            try:
                jobs[name] = measured(member.view(self._grants.of(name)))
            except Exception as error:  # one job's error does not concern the other jobs
                self._note(member, f"no statistics: {type(error).__name__}: {error}")
        granted = self._grants.taken(but=jobs)
        return FleetView(
            self._journal.time_s,
            jobs,
            max(0, self.limits.slots - granted),
            hosts=len(self._loads),
            hosts_congested=sum(host.congested for host in self._loads),
        )

    def _promised(self) -> int:
        """Return the number of slots with which jobs not started yet will begin, as far as known."""
        with self._lock:
            coming = {n: p for n, p in self._starting.items() if n not in self._members}
            return sum(
                member.first_slots(self._cores) for member in (self._prepared | coming).values()
            )

    def _too_many(self) -> bool:
        now_s = time.monotonic()
        while self._acted_s and self._acted_s[0] <= now_s - _MINUTE_S:
            self._acted_s.popleft()
        return len(self._acted_s) >= self.limits.actions_per_minute

    def _act(self, decision: FleetDecision, steady: Mapping[str, Member]) -> None:
        """Write a decision into the journal, and carry it out unless the fleet only advises."""
        self._note_decision(decision)
        if not decision or self.limits.advise:
            return
        self._acted_s.append(time.monotonic())
        self._next_action_s = time.monotonic() + self.limits.cooldown_s
        wanted = {name: slots for name, slots in decision.slots.items() if name in steady}
        self._grants.want(wanted, self.policy.name, decision.reason)

    # -- the journal ------------------------------------------------------------------------------

    def _note_decision(self, decision: FleetDecision) -> None:
        self._journal.decided(self.policy.name, decision, advise=self.limits.advise)

    def _note(self, member: Member, why: str) -> None:
        # the journal gets no text that may quote a record; `failures` has the whole reason
        failure = member.query.exception() if member.state is JobState.FAILED else None
        reason = getattr(failure, "journalled", "") or why
        self._journal.job(member.name, str(member.state), reason)
