"""Tests facts of tasks and pools that nobody gives, sources that deliver late, and cores of hosts."""

from __future__ import annotations

import dataclasses
from types import SimpleNamespace
from typing import Any

import pytest

from headgate.spark.fleet.hosts import Hosts
from headgate.spark.job.assignment_request import AssignmentRequest
from headgate.spark.job.pools import PoolConfig, PoolState
from headgate.spark.job.ports import SameExecutors
from headgate.spark.job.reports import ReplicaReport, Report, ReportChannel
from headgate.spark.move.copy_thread import Delivery, Lags
from headgate.spark.move.host_tasks import GroupOrder, OrderDone
from headgate.spark.read.reading import Reading
from headgate.spark.read.stages import Stage
from headgate.spark.steer.metrics import SourceDelay
from headgate.spark.worker.facts import SlotFacts
from headgate.spark.worker.slot import SlotTask


@pytest.mark.parametrize(
    ("kind", "wanted"),
    [
        (PoolConfig, {"interval_s": 10.0, "restart_s": 5.0, "attempts": 4}),
        (PoolState, {"processed": 0.0, "useful_s": 0.0, "_expected": 0, "_cursor": 0}),
        (SameExecutors, {"cores": 1}),
        (Report, {"cpu_ms": 0.0, "waited_ms": 0.0, "merged_rows": 0, "stage": -1, "tries": 0}),
        (ReplicaReport, {"rows_s": 0.0, "too_old": 0}),
        (AssignmentRequest, {"decided": False, "moved_bytes": 0}),
        (Lags, {"caught_up": 1, "served": 4, "kept": 2}),
        (Delivery, {"moved_bytes": 0, "dropped": False, "failures": 0}),
        (GroupOrder, {"step": -1}),
        (OrderDone, {"moved_bytes": 0}),
        (Reading, {"whole_windows": False, "asks_kafka": True}),
        (Stage, {"feeds": False}),
        (SlotFacts, {"origins": False, "show_keys": False, "slots": 0, "key_groups": 0}),
        (SlotTask, {"into_sink": False}),
    ],
)
def test_a_fact_that_nobody_gives_is_the_usual_one(kind: Any, wanted: dict[str, Any]) -> None:
    found = {
        field.name: field.default
        for field in dataclasses.fields(kind)
        if isinstance(field.default, bool | int | float)
    }
    assert found == wanted


def test_a_source_that_delivers_late_delays_samples_by_two_seconds_at_most() -> None:
    delay = SourceDelay()
    assert delay.behind == 0
    delay.add(5, 100.0)  # before the first batch nobody knows
    delay.read(100)
    assert delay.behind == 0
    delay.add(101, 50.0)
    assert delay.behind == 0, "a record of a time slot to come is not late"
    delay.add(97, 50.0)
    assert delay.behind == 3
    delay.add(60, 900.0)
    assert delay.behind == 20
    delay.read(99)
    delay.add(99, 1.0)
    assert delay.behind == 20, "an earlier time slot is no news"


def test_a_few_records_that_come_later_delay_nothing_and_old_ones_are_forgotten() -> None:
    delay = SourceDelay()
    delay.read(100)
    delay.add(100, 990.0)
    delay.add(90, 10.0)
    assert delay.behind == 0
    delay.add(90, 1.0)
    assert delay.behind == 10
    for tick in range(101, 131):
        delay.read(tick)
        delay.add(tick, 100.0)
    assert delay.behind == 0


def test_reports_of_tasks_are_collected_in_one_list_and_forgotten_together() -> None:
    made: list[Any] = []

    def accumulator(value: Any, param: Any) -> Any:
        made.append(param)
        return SimpleNamespace(value=value)

    context: Any = SimpleNamespace(accumulator=accumulator)
    channel: Any = ReportChannel(context)
    [param] = made
    assert param.zero([1, 2]) == []
    held = channel.sender.value
    assert param.addInPlace(held, [SimpleNamespace(step=1, attempt=1)]) is held
    param.addInPlace(held, [SimpleNamespace(step=2, attempt=1), SimpleNamespace(step=2, attempt=2)])
    assert [(one.step, one.attempt) for one in channel.drain(2, 2)] == [(2, 2)]
    assert channel.drain(1, 1) == []


def test_a_host_has_the_cores_of_its_executors() -> None:
    made: Any = object.__new__(Hosts)
    made._pool, made._local_cores = None, 3
    assert made._cores() == {"local": 3}
    executors = [
        SimpleNamespace(host=host, cores=cores) for host, cores in (("a", 2), ("b", 1), ("a", 4))
    ]
    made._pool = SimpleNamespace(living=lambda: executors)
    assert made._cores() == {"a": 6, "b": 1}
