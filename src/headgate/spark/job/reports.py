"""Carries the reports of slot tasks to the driver.

A report names step, attempt, operator, slot and token. Spark may run a slot's task several times in one
attempt, and each execution sends a report. So the driver chooses one report per slot, then adds them up.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Generic, Protocol, TypeVar

from pyspark import SparkContext
from pyspark.accumulators import Accumulator, AccumulatorParam

from headgate.checkpoint.changelog import SectionRef
from headgate.core.errors import EngineError
from headgate.journal.histogram import Sparse
from headgate.operators.counts import Counts
from headgate.operators.step import InputCounts
from headgate.tables.tiers import Tiering


@dataclass(frozen=True)
class Payload:
    """Holds bytes that a slot task made, or names the checkpoint's file that has them."""

    data: bytes | None
    name: str | None
    """File name within the checkpoint's directory for such files; None if `data` has the bytes."""
    length: int
    crc32: int


@dataclass(frozen=True)
class Ran:
    """Holds the host and the times of one execution of a task."""

    host: str
    """Spark's name of the host; in a local session the machine's own name."""
    began_ms: float
    ended_ms: float
    """`began_ms`, `ended_ms`: on the host's wall clock, since 1970."""
    load: float | None
    """The machine's load average over a minute; None if the system has none."""


@dataclass(frozen=True)
class Report:
    """Holds the work of one execution of a slot task."""

    step: int
    attempt: int
    operator: str
    slot: int
    token: str
    consumed: tuple[str, ...]
    """Tokens of the upstream slots whose rows the task read."""
    groups: dict[int, tuple[int, int, int]]
    """Key group -> (emitted_us, due_us, rows), as in `GroupDone`, of the groups that changed."""
    sections: dict[int, SectionRef]
    """Position of each group's change in `changelog`."""
    changelog: Payload | None
    output: Payload | None
    waiting: Payload | None
    late: Payload | None
    output_rows: int
    late_rows: int
    segments: dict[int, tuple[int, int]]
    """Key -> (start, count): the rows within `waiting` that wait for a key group. The key is the number
    of the group, also of rows merged for the group's owner. For records of the slot's share of another
    slot's group, the key is `Assignment.share_key`."""
    taken: dict[int, int]
    """Key, as in `segments` -> rows served from the backlog."""
    arrived: int
    served: int
    late_records: int
    waiting_records: int
    """`arrived`, `served`, `late_records`, `waiting_records`: records."""
    served_rows: int
    touched_rows: int
    served_by_group: dict[int, int]
    histogram: tuple[tuple[float, int], ...]
    """tuple of (upper edge in ms, count)."""
    latency_sum_ms: float
    latency_max_ms: float
    watermark_us: int
    """The operator's watermark in the slot's request."""
    holds_us: int
    """The least watermark of the slot's groups."""
    useful_ms: float
    phases_ms: dict[str, float] = field(default_factory=dict)
    counts: Counts | None = None
    """Counts for the control loop; None without a loop."""
    cpu_ms: float = 0.0
    """Part of `useful_ms` in which the worker ran on a core."""
    waited_ms: float = 0.0
    """Part of `useful_ms` in which the worker waited for a core; 0 if the kernel does not say."""
    merged_rows: int = 0
    """Rows served that another slot had merged; that slot counted their records as served."""
    apart_holds_us: dict[int, int] = field(default_factory=dict)
    touched_by_group: dict[int, int] = field(default_factory=dict)
    """`apart_holds_us`, `touched_by_group`: see `Served`."""
    apart_records: dict[int, int] = field(default_factory=dict)
    """Records in the rows that the slot merged for other slots, by key group."""
    stage: int = -1
    """Spark's id of the task's stage."""
    daemon: str = ""
    """Host and process of the daemon that forked the task's Python worker: one for each executor."""
    tries: int = 0
    """Spark's attempt number of the task: executions that Spark gave up before."""
    inputs: tuple[InputCounts, ...] = ()
    """Records of each input of the operator."""
    newest_ms: dict[int, dict[int, float]] = field(default_factory=dict)
    results: dict[int, dict[int, int]] = field(default_factory=dict)
    """`newest_ms`, `results`: see `Served`."""
    ran: Ran | None = None
    tiering: Tiering | None = None
    """Moves of key groups between memory and disk; None without a limit on memory."""
    hottest_key: tuple[int, str] | None = None
    """Records and value of the most frequent key; None if it is not to be shown or there is no key."""

    @property
    def work(self) -> int:
        """Return the records served, plus the rows served that another slot had merged."""
        return self.served + self.merged_rows


@dataclass(frozen=True)
class ReplicaReport:
    """Holds the work of one execution of a replica's task."""

    step: int
    attempt: int
    operator: str
    lane: int
    """Index of the replica in the batch's list of replicas with a task."""
    token: str
    """Identifies this execution of the task."""
    taken: int
    """Rows that left the replica's backlog, oldest first."""
    arrived: int
    served: int
    waiting_rows: int
    """`arrived`, `served`, `waiting_rows`: rows that came with the batch; rows served; rows that came
    with the batch and now wait."""
    output: Payload | None
    waiting: Payload | None
    output_rows: int
    useful_s: float
    """Time in the user's function."""
    histogram: Sparse
    """Latencies of the served rows."""
    latency_sum_ms: float
    rows_s: float = 0.0
    """Time in the user's function on rows, without the function's set-up."""
    too_old: int = 0
    """Rows dropped for their age, from the backlog and from the batch."""
    ran: Ran | None = None
    origins: dict[int, int] = field(default_factory=dict)
    """Rows that came, by the number of the stage that put them out; -1 for the source."""


class Tagged(Protocol):
    """Names the step and the attempt of a report, by which `ReportChannel` selects reports."""

    @property
    def step(self) -> int:
        """The job's step."""

    @property
    def attempt(self) -> int:
        """The step's attempt."""


R = TypeVar("R", bound=Tagged)


class _Collected(AccumulatorParam[list[Any]]):
    """Appends the tasks' reports to a list."""

    def zero(self, value: list[Any]) -> list[Any]:
        return []

    def addInPlace(self, value1: list[Any], value2: list[Any]) -> list[Any]:
        value1.extend(value2)
        return value1


class ReportChannel(Generic[R]):
    """Wraps one accumulator per query; PySpark never frees an accumulator, so batches share it."""

    def __init__(self, context: SparkContext) -> None:
        self._accumulator: Accumulator[list[R]] = context.accumulator([], _Collected())

    @property
    def sender(self) -> Any:
        """The accumulator; a task sends with ``add([report])``."""
        return self._accumulator

    def drain(self, step: int, attempt: int) -> list[R]:
        """Return this attempt's reports, and forget all reports until now."""
        reports = self._accumulator.value
        self._accumulator.value = []
        return [r for r in reports if r.step == step and r.attempt == attempt]


def consistent(reports: list[Report], slots: dict[str, int], chain: list[str]) -> list[Report]:
    """Return one report per operator and slot, such that all consumers read the same executions.

    `reports`: of one attempt; may have several executions of a slot task. `chain`: operators from
    the source on. Raises a transient `EngineError`: a report is missing, or two consumers of a slot
    read different executions of the slot's task.
    """
    chosen: list[Report] = []
    wanted: frozenset[str] | None = None
    for operator in reversed(chain):
        executions = [r for r in reports if r.operator == operator]
        if wanted is not None:
            executions = [r for r in executions if r.token in wanted]
        by_slot = {r.slot: r for r in executions}
        if len(by_slot) != slots[operator] or len(executions) != len(by_slot):
            msg = (
                f"{len(executions)} reports came from {slots[operator]} slots of {operator}; "
                "the batch runs again."
            )
            raise EngineError(msg, transient=True)
        consumed = {frozenset(r.consumed) for r in executions}
        if len(consumed) != 1:
            msg = f"slots of {operator} read different executions; the batch runs again."
            raise EngineError(msg, transient=True)
        wanted = consumed.pop()
        chosen += executions
    return chosen
