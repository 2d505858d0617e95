"""Changes the number of active replicas between two batches, as policy, users and fleet request."""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Mapping, Sequence

from headgate.checkpoint.manifest import Manifest
from headgate.control.fleet.grant import Grant
from headgate.control.fleet.granted import GrantedPools
from headgate.control.pools.replicas import Interval, ReplicaPolicy
from headgate.core.errors import ConfigError, NotReady
from headgate.journal.fleet import GrantChange, SlotRequest
from headgate.loop.replicas import run_interval
from headgate.spark.job.pools import PoolConfig, PoolState
from headgate.spark.pools.pool_record import PoolRecorder

RESTARTED = "restart"
"""Reason for dropped rows: a policy that restarts the job drops waiting rows."""

_KEPT = 10_000
"""Number of decisions that `PoolQuery.decisions` keeps, since a query may run for months."""


class PoolLoop:
    """Ends intervals, and carries out requests of policy, users and fleet.

    Implements `PoolEngine` and `SlotHolder`.

    Parameters
    ----------
    stages : sequence of str    From the source upwards.
    latest : Manifest or None    The newest manifest, from which the pools are restored.
    parents : mapping of str to sequence of str, optional
        For each stage the stages that it reads; without this argument the stages are a chain.

    Attributes
    ----------
    states : dict of str to PoolState    By stage, from the source upwards.
    step : int    Number of the next step.
    decisions : deque of (float, str)
        Newest decisions: seconds since the query began, and the reason.
    began_s : float    When the query began, on the monotonic clock.
    lost : int    Rows lost in restarts since the first start.
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
        self._policy = GrantedPools(policy)
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
        self._asked = ("user", "")
        self._seen: Interval | None = None
        self._noted: dict[str, int] = {}

    @property
    def blocked(self) -> bool:
        """Return whether a restart is going on, in which no row is served."""
        return time.monotonic() < self._blocked_until_s

    def ask(self, wanted: Mapping[str, int], by: str = "user", reason: str = "") -> None:
        """Request the number of active replicas of some stages, from the next batch on.

        Raises `ConfigError`: a fleet grants fewer.
        """
        for name, replicas in wanted.items():
            if replicas > self.most(name):
                msg = (
                    f"replicas={replicas} exceeds the {self.most(name)} that the fleet grants {name}; "
                    "raise the job's priority or the fleet's budget."
                )
                raise ConfigError(msg)
        self._wanted = {**self._wanted, **wanted}
        self._asked = (by, reason)

    # -- the port of a fleet ----------------------------------------------------------------------

    def held(self) -> dict[str, int]:
        """Return the active replicas of each stage, without those that only serve their last records."""
        return {name: len(state.active) for name, state in self.states.items()}

    def holds(self) -> dict[str, float]:
        """Return no holds: a user cannot hold the replicas of a stage."""
        return {}

    def changing(self) -> bool:
        """Return whether a requested change of replicas is not in force yet."""
        held = self.held()
        return any(held[name] != replicas for name, replicas in self._wanted.items())

    def limit(self, grant: Grant) -> None:
        """Limit the active replicas of each stage to a grant, from the next batch on."""
        if dict(grant.slots) != dict(self._policy.grant.slots):
            self.recorder.write(GrantChange(dict(grant.slots), grant.by, grant.reason))
        self._policy.grant = grant

    def requests(self) -> dict[str, int]:
        """Return the numbers of replicas that the policy requests above its grant."""
        return {name: n for name, n in self._policy.requests.items() if n > self.most(name)}

    def most(self, stage: str) -> int:
        """Return the most replicas of a stage that may be active."""
        return self._policy.grant.most(stage, self.config.most)

    def arrived(self, rows: int) -> None:
        """Count rows that came from the source."""
        self._input += rows

    def dropped(self) -> dict[str, int]:
        """Return the rows dropped since the query's first start, by reason."""
        total = Counter({RESTARTED: self.lost})
        for state in self.states.values():
            total.update(state.dropped)
        return {reason: rows for reason, rows in total.items() if rows}

    def between_batches(self) -> None:
        """End the interval if it is over, and put requested changes in force."""
        self._end_interval()
        wanted, self._wanted = self._wanted, {}
        before = {name: len(self.states[name].active) for name in wanted}
        for name, replicas in wanted.items():
            self.states[name].resize(min(replicas, self.most(name)))
        self._note_sizes(before, *self._asked)
        self._give_up()

    def _give_up(self) -> None:
        """Deactivate replicas above the grant; they still serve the records that they hold."""
        before = self.held()
        for name, active in before.items():
            if active > self.most(name):
                self.states[name].resize(self.most(name))
        self._note_sizes(before, self._policy.grant.by, self._policy.grant.reason)

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
        self._note_requests()
        if decision:
            assert self._seen is not None  # `monitor` set it before the decision
            self.decisions.append((now_s - self.began_s, decision.reason))
            self.recorder.decided(now_s, self._seen, decision)
            self._note_sizes(before, self._policy.name, decision.reason)

    def _note_requests(self) -> None:
        """Write the policy's requests beyond the grant to the journal, if they have changed."""
        requests = dict(self._policy.requests)
        if requests != self._noted:
            self._noted = requests
            granted = {name: self.most(name) for name in self.states}
            self.recorder.write(SlotRequest(requests, granted))

    def _note_sizes(self, before: Mapping[str, int], by: str, reason: str) -> None:
        """Write stages to the journal whose number of active replicas differs from `before`."""
        for name, replicas in before.items():
            after = len(self.states[name].active)
            if after != replicas:
                self.recorder.resized(self.step, name, replicas, after, by, reason)

    # -- the port of an engine --------------------------------------------------------------------

    def monitor(self) -> Interval:
        """Return the measurements since the last decision; NotReady before the first ones."""
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
        """Set the number of active replicas of some stages, from the next batch on."""
        for name, wanted in active.items():
            self.states[name].resize(min(max(wanted, self.config.least), self.most(name)))

    def restart(self, active: Mapping[str, int]) -> None:
        """Drop waiting rows, and serve no row for `restart_s`."""
        self.lost += sum(state.forget() for state in self.states.values())
        self._blocked_until_s = time.monotonic() + self.config.restart_s
        self.resize(active)
