"""The loop that has pools of replicas follow the load, between two batches."""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Mapping, Sequence

from headgate.control.replicas import Interval, ReplicaPolicy
from headgate.core.errors import NotReady
from headgate.loop.replicas import run_interval
from headgate.spark.job.pools import PoolConfig, PoolState
from headgate.spark.step.pool_record import PoolRecorder
from headgate.state.manifest import Manifest

RESTARTED = "restart"
"""Why rows are dropped: a policy that restarts the job drops what waits."""

_KEPT = 10_000
"""Decisions that a query tells of; a query may run for months."""


class PoolLoop:
    """Ends intervals, and carries out what the policy and users want; a `PoolEngine`.

    Parameters
    ----------
    stages : sequence of str
        From the source upwards.
    config : PoolConfig
    policy : ReplicaPolicy
    latest : Manifest or None
        Where the checkpoint left the pools.
    recorder : PoolRecorder
    parents : mapping of str to sequence of str, optional
        The stages that each one reads; without it they are a chain.

    Attributes
    ----------
    states : dict of str to PoolState
        By stage, from the source upwards.
    step : int
        The one that comes next.
    decisions : deque of (float, str)
        The last ones: when, in seconds since the query began, and why.
    began_s : float
        When the query began, on the monotonic clock.
    lost : int
        Rows lost in restarts since the first start.
    """

    def __init__(
        self,
        stages: Sequence[str],
        config: PoolConfig,
        policy: ReplicaPolicy,
        latest: Manifest | None,
        recorder: PoolRecorder,
        parents: Mapping[str, Sequence[str]] | None = None,
    ) -> None:
        self.config = config
        self._policy = policy
        self.recorder = recorder
        if parents is None:
            parents = {stage: stages[max(0, n - 1) : n] for n, stage in enumerate(stages)}
        number = {stage: n for n, stage in enumerate(stages)}
        self._parents = {
            stage: {number[parent]: parent for parent in parents[stage]} for stage in stages
        }
        known = {} if latest is None else latest.engine["pools"]
        self.states: dict[str, PoolState] = {
            stage: PoolState.recovered(config, known[stage])
            if stage in known
            else PoolState.fresh(config)
            for stage in stages
        }
        for stage, state in self.states.items():
            state.grouping = config.groupings.of(stage)
        self.lost = 0 if latest is None else int(latest.engine["lost"])
        self.step = 0 if latest is None else latest.step + 1
        self.decisions: deque[tuple[float, str]] = deque(maxlen=_KEPT)
        self.began_s = self._interval_s = time.monotonic()
        self._blocked_until_s = 0.0
        self._input = 0
        self._wanted: dict[str, int] = {}
        self._seen: Interval | None = None

    @property
    def blocked(self) -> bool:
        """Whether a restart is going on, in which nothing is served."""
        return time.monotonic() < self._blocked_until_s

    def ask(self, wanted: Mapping[str, int]) -> None:
        """Have so many replicas of each stage named active from the next batch on."""
        self._wanted = {**self._wanted, **wanted}

    def arrived(self, rows: int) -> None:
        """Take note of rows that came from the source."""
        self._input += rows

    def dropped(self) -> dict[str, int]:
        """Return the rows dropped since the query's first start, by reason."""
        total = Counter({RESTARTED: self.lost})
        for state in self.states.values():
            total.update(state.dropped)
        return {reason: rows for reason, rows in total.items() if rows}

    def between_batches(self) -> None:
        """End the interval if it is over, and do what was asked for."""
        self._end_interval()
        wanted, self._wanted = self._wanted, {}
        before = {name: len(self.states[name].active) for name in wanted}
        for name, replicas in wanted.items():
            self.states[name].resize(replicas)
        self._note_sizes(before, "user", "")

    def _end_interval(self) -> None:
        now_s = time.monotonic()
        if now_s - self._interval_s < self.config.interval_s or now_s < self._blocked_until_s:
            return
        before = {name: len(state.active) for name, state in self.states.items()}
        try:
            decision = run_interval(self._policy, self)
        except NotReady:
            return
        finally:
            self._interval_s, self._input = now_s, 0
        if decision:
            assert self._seen is not None  # it was decided on
            self.decisions.append((now_s - self.began_s, decision.reason))
            self.recorder.decided(now_s, self._seen, decision)
            self._note_sizes(before, self._policy.name, decision.reason)

    def _note_sizes(self, before: Mapping[str, int], by: str, reason: str) -> None:
        """Write down which stages have another number of active replicas than `before`."""
        for name, replicas in before.items():
            after = len(self.states[name].active)
            if after != replicas:
                self.recorder.resized(self.step, name, replicas, after, by, reason)

    # -- the port of an engine --------------------------------------------------------------------

    def monitor(self) -> Interval:
        """Return what happened since the last decision; NotReady before anything was measured."""
        operators = {}
        for name, state in self.states.items():
            seen = state.interval(self.config, self._parents[name])
            if seen is not None:
                operators[name] = seen
        if len(operators) < len(self.states):
            msg = "a stage has served nothing yet."
            raise NotReady(msg)
        self._seen = Interval(time.monotonic() - self._interval_s, float(self._input), operators)
        return self._seen

    def resize(self, active: Mapping[str, int]) -> None:
        """Activate and deactivate from the next batch on."""
        for name, wanted in active.items():
            self.states[name].resize(max(wanted, self.config.least))

    def restart(self, active: Mapping[str, int]) -> None:
        """Drop what waits, and serve nothing for a while."""
        self.lost += sum(state.forget() for state in self.states.values())
        self._blocked_until_s = time.monotonic() + self.config.restart_s
        self.resize(active)
