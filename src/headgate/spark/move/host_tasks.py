"""Runs Spark tasks that copy key groups to a host, or delete them there, beside the batches.

A host task is a separate small Spark job with a task per host. It follows the rules of slot tasks
(tokens, locks, and a new file if the old file is locked or has another token), so a task that Spark
has abandoned, or runs twice, does no harm.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql import types as T

from headgate.checkpoint.checkpoint import Checkpoint
from headgate.core.errors import HeadgateError
from headgate.operators.build import Spec
from headgate.spark.jvm.hosts import THIS_HOST, pinned
from headgate.spark.jvm.plans import ArrowMap
from headgate.spark.worker.slot import freeze_once
from headgate.spark.worker.worker import checkpoint_at, operator_named, run_named, store_of
from headgate.tables.arena import ArenaStore
from headgate.tables.ports import EMPTY_TOKEN, Section

HOST_TASK_PROPERTY = "headgate.hostTask"
"""Local property of Spark that carries the facts to host tasks."""


@dataclass(frozen=True)
class GroupOrder:
    """Holds the order to copy or delete one key group on a host."""

    operator: str
    group: int
    token: str = ""
    """Token to which the copy is brought; empty to delete the table."""
    step: int = -1
    """Step whose manifest holds the newest section of that state."""


@dataclass(frozen=True)
class OrderDone:
    """Holds the result of one order."""

    order: GroupOrder
    moved_bytes: int = 0
    """Size of the changelog sections that were applied."""
    problem: str = ""
    """Why the order failed; empty if it did not."""


@dataclass(frozen=True)
class TaskAnswer:
    """Holds the report of one task."""

    wished: str
    host: str
    """`wished`, `host`: intended host, and the host on which the task ran; if they differ, the task
    does nothing."""
    arena: str
    """Arena of `host`."""
    done: tuple[OrderDone, ...] = ()
    """Results of the orders that were begun within the time slice, in the requested sequence."""
    problem: str = ""
    """Why the task did not run on `wished`, if that is known; else empty."""


class HostTasks:
    """Runs host tasks; only one thread at a time may call it.

    `facts`: ``arena_root``, ``run_id``, ``checkpoint`` and ``memory``, as slot tasks get them.
    `name`: name of the query, for the Spark UI.
    """

    def __init__(
        self,
        spark: SparkSession,
        specs: dict[str, Spec],
        facts: dict[str, Any],
        name: str,
        store: Mapping[str, str] | None,
    ) -> None:
        self._spark = spark
        self._facts = facts
        self._name = name
        schema = T.StructType([T.StructField("answer", T.StringType())])
        self._map = ArrowMap(_HostTask(specs, store or {}), schema)
        self._frames: dict[tuple[str, ...], DataFrame] = {}

    def run(self, work: dict[str, Sequence[GroupOrder]], slice_s: float) -> list[TaskAnswer]:
        """Carry out the orders of each host; return when all tasks have ended.

        `work`: orders by host. `slice_s`: time that a task may hold a core that a slot might need; then
        it finishes the current key group and ends. Raises `Exception`: Spark's error of a failed job.
        """
        hosts = tuple(sorted(work))
        asked = {host: [asdict(order) for order in work[host]] for host in hosts}
        context = self._spark.sparkContext
        facts = self._facts | {"hosts": hosts, "work": asked, "slice_s": slice_s}
        context.setLocalProperty(HOST_TASK_PROPERTY, json.dumps(facts))
        count = sum(map(len, work.values()))
        text = f"{self._name} migration: {count} key groups on {', '.join(hosts)}"
        context.setLocalProperty("spark.job.description", text)
        return [_answer(row.answer) for row in self._frame(hosts).collect()]

    def _frame(self, hosts: tuple[str, ...]) -> DataFrame:
        if hosts not in self._frames:
            count = len(hosts)
            rows = self._spark.range(0, count, 1, count)
            self._frames[hosts] = self._map.apply(
                pinned(rows, hosts).select("id", F.expr(THIS_HOST).alias("host"))
            )
        return self._frames[hosts]


def _answer(text: str) -> TaskAnswer:
    found = json.loads(text)
    done = (OrderDone(GroupOrder(**one.pop("order")), **one) for one in found.pop("done"))
    return TaskAnswer(**found, done=tuple(done))


@dataclass(frozen=True)
class _HostTask:
    """Runs a host task in `mapInArrow`: returns one answer for its one row."""

    specs: dict[str, Spec]
    store: Mapping[str, str] = field(repr=False)

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        context = TaskContext.get()
        assert context is not None
        facts = json.loads(context.getLocalProperty(HOST_TASK_PROPERTY) or "{}")
        for batch in batches:
            for index, host in zip(*(column.to_pylist() for column in batch.columns), strict=True):
                answer = self._answer(facts, facts["hosts"][index], host)
                yield pa.RecordBatch.from_pydict({"answer": [json.dumps(asdict(answer))]})
        freeze_once()

    def _answer(self, facts: dict[str, Any], wished: str, host: str) -> TaskAnswer:
        if host != wished:
            run = run_named(facts["arena_root"], facts["run_id"], facts.get("memory"))
            return TaskAnswer(wished, host, run.arena)
        orders = [GroupOrder(**asked) for asked in facts["work"][host]]
        return carry_out(self.specs, self.store, facts, host, orders)


def carry_out(
    specs: Mapping[str, Spec],
    store: Mapping[str, str],
    facts: Mapping[str, Any],
    host: str,
    orders: Sequence[GroupOrder],
) -> TaskAnswer:
    """Copy or delete key groups on this host until the time slice is over, but at least the first.

    `facts`: those of `HostTasks`, and ``slice_s``. `host`: the name of this host.
    """
    run = run_named(facts["arena_root"], facts["run_id"], facts.get("memory"))
    checkpoint = checkpoint_at(facts["checkpoint"], facts["run_id"], store)
    until, done = time.monotonic() + facts["slice_s"], []
    for order in orders:
        operator = operator_named(order.operator, specs[order.operator])
        tables = store_of(run, order.operator, operator, facts.get("memory"))
        done.append(_do(order, tables, checkpoint))
        if time.monotonic() > until:
            break
    return TaskAnswer(host, host, run.arena, tuple(done))


def _do(order: GroupOrder, store: ArenaStore, checkpoint: Checkpoint) -> OrderDone:
    if not order.token:
        store.forget(order.group)
        return OrderDone(order)
    try:
        return OrderDone(order, _bring(order, store, checkpoint))
    except (HeadgateError, OSError) as error:
        return OrderDone(order, problem=str(error))


def _bring(order: GroupOrder, store: ArenaStore, checkpoint: Checkpoint) -> int:
    """Bring a key group to its token, then release its file; return the bytes that were applied."""
    if order.token == EMPTY_TOKEN:
        return 0
    chain = checkpoint.chain(order.operator, order.group, order.step, order.token)
    applied = _Applied()

    def sections(token: str) -> Sequence[Section]:
        return applied.note(chain(token))

    store.acquire(order.group, order.token, sections)
    store.release(order.group)
    return applied.byte_count


@dataclass
class _Applied:
    """Counts the bytes of the sections requested last; sections requested earlier were not used."""

    byte_count: int = field(default=0)

    def note(self, sections: Sequence[Section]) -> Sequence[Section]:
        self.byte_count = sum(s.rows.nbytes + s.string_bytes.nbytes for s in sections)
        return sections
