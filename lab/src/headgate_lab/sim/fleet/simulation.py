"""Simulates the cluster by rounds, and shows it to a fleet policy."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from headgate.control.fleet.juice import Flow
from headgate.control.fleet.view import (
    FleetJob,
    FleetOperator,
    FleetView,
    Slots,
    operator_capacity,
)
from headgate.core.errors import ConfigError, nearest
from headgate.core.utility import Intent, Metric
from headgate_lab.sim.fleet import kernels
from headgate_lab.sim.fleet.juice_window import JuiceWindow
from headgate_lab.sim.fleet.kernels import F64, I64
from headgate_lab.sim.fleet.model import Cluster, SimJob
from headgate_lab.workloads.topologies import OperatorShape

STEP_S = 0.5
"""Length of a step of the fluid, in seconds. Chosen: rates and slowdowns change more slowly."""

WINDOW_ROUNDS = 6
"""Rounds over which latency, juice and throughput are measured: one minute of six times 10 s."""

_NOISE_KEPT = 0.9
"""Autocorrelation of a host's noise from one round to the next [I]."""


@dataclass
class _Member:
    """Holds the state of a job in the cluster.

    Attributes
    ----------
    rows : slice
        Rows of the job's operators in the arrays.
    edges : list of (parent, child)
    hosts : int64[hosts of the job]
        Hosts of the job's slots.
    finished : deque of (float, float, float)
        Per round: records that left a sink, sum of their latencies, length of the round in seconds.
    capacity : float64[operators of the job]
        Busy share of each operator's slots in the last round.
    input_rate : float
        Arriving records per second in the last round.
    """

    job: SimJob
    rows: slice
    edges: list[tuple[str, str]]
    hosts: I64
    juice: JuiceWindow = field(default_factory=lambda: JuiceWindow(WINDOW_ROUNDS))
    finished: deque[tuple[float, float, float]] = field(
        default_factory=lambda: deque(maxlen=WINDOW_ROUNDS)
    )
    capacity: F64 = field(default_factory=lambda: np.zeros(0))
    input_rate: float = 0.0

    @property
    def names(self) -> list[str]:
        """Names of the job's operators, parents before children."""
        return list(self.job.topology.operators)


class FleetSimulation:
    """Simulates jobs on hosts, on a virtual clock.

    Parameters
    ----------
    seed : int
        Seed of the hosts' noise.
    """

    def __init__(self, cluster: Cluster, seed: int = 1) -> None:
        self.cluster = cluster
        self.time_s = 0.0
        self._members: dict[str, _Member] = {}
        self._generator = np.random.default_rng(seed)
        self._noise = np.zeros(cluster.hosts)
        self._hosts = np.zeros((cluster.hosts, 3))
        self._hosts[:, kernels.STRETCH] = 1.0
        self._runnable = np.zeros(cluster.hosts)
        self._ops = np.zeros((0, kernels.COLUMNS))
        self._places = np.zeros((0, 3), np.int64)
        self._slots = np.zeros((0, cluster.hosts), np.int64)
        self._counts = np.zeros((0, kernels.CHUNKS))
        self._births = np.zeros((0, kernels.CHUNKS))
        self._join_up()

    # -- jobs -------------------------------------------------------------------------------------

    @property
    def jobs(self) -> Mapping[str, SimJob]:
        """Jobs in the cluster, in the order of submission."""
        return {name: member.job for name, member in self._members.items()}

    def add(self, name: str, job: SimJob) -> None:
        """Add a job, with the slots of its topology.

        Raises
        ------
        ConfigError
            A job with this name exists.
        """
        if name in self._members:
            msg = f'a job "{name}" runs already; give this one another name.'
            raise ConfigError(msg)
        shapes = job.topology.operators
        start = len(self._ops)
        rows = slice(start, start + len(shapes))
        edges = [(parent, child) for child, s in shapes.items() for parent in s.parents]
        member = _Member(job, rows, edges, self._place(job.hosts), capacity=np.zeros(len(shapes)))
        self._ops = np.vstack([self._ops, [_row(shape) for shape in shapes.values()]])
        spread = [self._spread(s.slots, k, member.hosts) for k, s in enumerate(shapes.values())]
        self._slots = np.vstack([self._slots, spread])
        ring = np.zeros((len(shapes), kernels.CHUNKS))
        self._counts = np.vstack([self._counts, ring])
        self._births = np.vstack([self._births, ring])
        self._places = np.vstack([self._places, np.zeros((len(shapes), 3), np.int64)])
        self._members[name] = member
        self._join_up()

    def remove(self, name: str) -> None:
        """Remove a job and its queues."""
        rows = self._get(name).rows
        del self._members[name]
        gone = rows.stop - rows.start
        for array in ("_ops", "_slots", "_counts", "_births", "_places"):
            setattr(self, array, np.delete(getattr(self, array), rows, axis=0))
        for member in self._members.values():
            if member.rows.start >= rows.stop:
                member.rows = slice(member.rows.start - gone, member.rows.stop - gone)
        self._join_up()

    def _get(self, name: str) -> _Member:
        if name not in self._members:
            msg = f'no job "{name}" runs{nearest(name, self._members)}.'
            raise ConfigError(msg)
        return self._members[name]

    def _place(self, count: int) -> I64:
        """Return the hosts of a new job: those with the fewest slots, ties at random."""
        by_chance = self._generator.permutation(self.cluster.hosts)
        held = self._slots.sum(axis=0)[by_chance]
        hosts: I64 = np.sort(by_chance[np.argsort(held, kind="stable")][:count])
        return hosts

    def _spread(self, slots: int, offset: int, hosts: I64) -> I64:
        """Return the number of an operator's slots on each host, as equal as possible."""
        each: I64 = np.zeros(self.cluster.hosts, np.int64)
        each[hosts] = slots // len(hosts)
        each[hosts[(offset + np.arange(slots % len(hosts))) % len(hosts)]] += 1
        return each

    def _join_up(self) -> None:
        """Assign numbers to the edges of all jobs, consecutive ones to those of a parent."""
        of_parent: list[list[int]] = [[] for _ in range(len(self._ops))]
        self._edge_of: dict[tuple[str, str, str], int] = {}
        for number, member in enumerate(self._members.values()):
            self._places[member.rows, kernels.JOB] = number
            index = {op: member.rows.start + k for k, op in enumerate(member.names)}
            for parent, child in member.edges:
                of_parent[index[parent]].append(index[child])
        self._first: I64 = np.cumsum([0, *map(len, of_parent)]).astype(np.int64)
        self._children: I64 = np.array([c for cs in of_parent for c in cs], np.int64)
        self._sent: F64 = np.zeros(len(self._children))
        for name, member in self._members.items():
            index = {op: member.rows.start + k for k, op in enumerate(member.names)}
            for parent, child in member.edges:
                at = of_parent[index[parent]].index(index[child])
                self._edge_of[name, parent, child] = int(self._first[index[parent]]) + at

    # -- time -------------------------------------------------------------------------------------

    def advance(self, seconds: float) -> None:
        """Simulate a round of `seconds`, a multiple of `STEP_S`."""
        steps = round(seconds / STEP_S)
        self._shake()
        self._sent[:] = 0.0
        self._ops[:, [kernels.EXECUTED, kernels.BUSY]] = 0.0
        self._hosts[:, kernels.RUNNABLE] = 0.0
        done = np.zeros((len(self._members), 2))
        kernels.advance(
            self.time_s,
            STEP_S,
            self.cluster.cores,
            self.cluster.slot_overhead,
            self._rates(steps),
            self._ops,
            self._slots,
            self._places,
            self._first,
            self._children,
            self._sent,
            self._counts,
            self._births,
            done,
            self._hosts,
        )
        self.time_s += steps * STEP_S
        self._runnable = self._hosts[:, kernels.RUNNABLE] / seconds
        for (name, member), (count, latency_s) in zip(self._members.items(), done, strict=True):
            member.finished.append((float(count), float(latency_s), seconds))
            member.juice.add(self._flows(name, member))
            held = self._slots[member.rows].sum(axis=1)
            busy_s = self._ops[member.rows, kernels.BUSY]
            # all slots of an operator serve the fluid equally, so each is the busiest
            each_s = (busy_s / held).tolist()
            member.capacity = np.array([operator_capacity((worked,), seconds) for worked in each_s])

    def _shake(self) -> None:
        """Draw the load of other processes on each host in this round."""
        cluster = self.cluster
        fresh = self._generator.normal(0.0, np.sqrt(1.0 - _NOISE_KEPT**2), cluster.hosts)
        self._noise = _NOISE_KEPT * self._noise + fresh
        given = [cluster.background(self.time_s, host) for host in range(cluster.hosts)]
        taken = np.abs(self._noise) * cluster.noise * cluster.cores
        self._hosts[:, kernels.BACKGROUND] = np.array(given) + taken

    def _rates(self, steps: int) -> F64:
        rates = np.zeros((steps, len(self._ops)))
        for member in self._members.values():
            shapes = member.job.topology.operators.values()
            sources = [member.rows.start + k for k, s in enumerate(shapes) if s.source]
            at = [member.job.rate_at(self.time_s + (k + 0.5) * STEP_S) for k in range(steps)]
            rates[:, sources] = np.array(at)[:, None] / len(sources)
            member.input_rate = float(np.mean(at))
        return rates

    def _flows(self, name: str, member: _Member) -> list[Flow]:
        """Return the flow of each edge; an operator's work is divided by the records from each parent."""
        index = {op: member.rows.start + k for k, op in enumerate(member.names)}
        sent = {edge: float(self._sent[self._edge_of[(name, *edge)]]) for edge in member.edges}
        flows = []
        for (parent, child), count in sent.items():
            into = [n for (_, to), n in sent.items() if to == child]
            share = count / sum(into) if sum(into) > 0.0 else 1.0 / len(into)
            row = self._ops[index[child]]
            executed, waiting = row[kernels.EXECUTED] * share, row[kernels.QUEUE] * share
            flows.append(Flow(parent, child, count, float(executed), float(waiting)))
        return flows

    # -- what a policy sees and does --------------------------------------------------------------

    def view(self) -> FleetView:
        """Return the view of a fleet policy at the end of a round."""
        jobs = {name: self._view(member) for name, member in self._members.items()}
        congested = int((self._runnable > self.cluster.cores).sum())
        return FleetView(self.time_s, jobs, self.cluster.slots_max, self.cluster.hosts, congested)

    def _view(self, member: _Member) -> FleetJob:
        operators = {}
        for k, (name, shape) in enumerate(member.job.topology.operators.items()):
            row = member.rows.start + k
            slots = int(self._slots[row].sum())
            operators[name] = FleetOperator(
                slots=slots,
                capacity=float(member.capacity[k]),
                backlog_s=float(self._ops[row, kernels.QUEUE]) * shape.service_s / slots,
                source=shape.source,
                slots_max=max(slots, shape.slots_max),
            )
        values = tuple(self._measured(member, i) for i in member.job.utility.intents)
        return FleetJob(member.job.utility, values, operators, member.input_rate)

    def _measured(self, member: _Member, intent: Intent) -> float:
        """Return the value of an intent over the last minute."""
        if not member.finished:
            return float("nan")
        if intent.metric is Metric.JUICE:
            # Round away the errors of the floating-point fluid.
            return round(member.juice.juice(), 9)
        count = sum(n for n, _, _ in member.finished)
        if intent.metric is Metric.THROUGHPUT:
            return count / sum(round_s for _, _, round_s in member.finished)
        if count > 0.0:
            return sum(latency_s for _, latency_s, _ in member.finished) / count
        waiting = float(self._ops[member.rows, kernels.QUEUE].sum())
        return float("inf") if waiting > 0.0 else 0.0

    def apply(self, slots: Slots) -> None:
        """Give operators other numbers of slots; the jobs they are of pay for the change."""
        for name, operators in slots.items():
            member = self._get(name)
            for operator, count in operators.items():
                offset = member.names.index(operator)
                spread = self._spread(count, offset, member.hosts)
                self._slots[member.rows.start + offset] = spread
            self._pay(member.rows)

    def _pay(self, rows: slice) -> None:
        change = self.cluster.change
        self._ops[rows, kernels.PAUSED_UNTIL] = self.time_s + change.pause_s
        if change.loses_queues:
            self._ops[rows, kernels.QUEUE] = 0.0
            self._places[rows, kernels.SIZE] = 0

    @property
    def load(self) -> float:
        """Slots that were runnable per core in the last round, mean of the hosts."""
        return float(self._runnable.mean()) / self.cluster.cores

    @property
    def memory_share(self) -> float:
        """Share of the hosts' memory that is taken by kept and waiting records and by slots."""
        sizes = [
            shape.record_bytes
            for member in self._members.values()
            for shape in member.job.topology.operators.values()
        ]
        held = self._ops[:, kernels.QUEUE] + self._ops[:, kernels.RETAINED]
        taken = float(held @ np.array(sizes)) + self._slots.sum() * self.cluster.slot_bytes
        return float(taken / (self.cluster.memory_bytes * self.cluster.hosts))


def _row(shape: OperatorShape) -> F64:
    row = np.zeros(kernels.COLUMNS)
    row[kernels.SERVICE] = shape.service_s
    row[kernels.CPU] = shape.cpu_s
    row[kernels.VARIATION] = shape.variation
    row[kernels.SELECTIVITY] = shape.selectivity
    row[kernels.RETENTION] = shape.retention_s
    return row
