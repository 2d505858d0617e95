"""Key groups are copied to a host, or deleted there, by a task of Spark's; here without Spark."""

from __future__ import annotations

import json
from dataclasses import asdict
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from headgate.core.errors import StateError
from headgate.spark.move import host_tasks
from headgate.spark.move.host_tasks import (
    HOST_TASK_PROPERTY,
    GroupOrder,
    HostTasks,
    OrderDone,
    TaskAnswer,
    carry_out,
)
from headgate.tables.ports import EMPTY_TOKEN

COPY, DROP, EMPTY, BROKEN = (
    GroupOrder("op", 1, "a" * 32, 7),
    GroupOrder("op", 2),
    GroupOrder("op", 3, EMPTY_TOKEN),
    GroupOrder("op", 4, "b" * 32, 7),
)
FACTS = {"arena_root": "/arena", "run_id": "run", "checkpoint": "/ck", "slice_s": 60.0}


class Store:
    """A store of tables whose work is written down."""

    def __init__(self) -> None:
        self.did: list[str] = []

    def acquire(self, group: int, token: str, chain: Any) -> None:
        self.did.append(f"acquire {group} at {token[0]}")
        if token == BROKEN.token:
            raise StateError("group 4 has 3 bytes left")
        chain(EMPTY_TOKEN)  # a first try that was of no use
        self.did.append(f"apply {len(chain('c' * 32))} sections")

    def release(self, group: int) -> None:
        self.did.append(f"release {group}")

    def forget(self, group: int) -> None:
        self.did.append(f"forget {group}")


def section(rows: int) -> Any:
    return SimpleNamespace(rows=np.zeros(rows, np.int64), string_bytes=np.zeros(5, np.uint8))


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch) -> Store:
    made = Store()
    run = SimpleNamespace(arena="/arena of this host")
    chains = {EMPTY_TOKEN: [section(100)] * 2, "c" * 32: [section(1), section(2)]}
    checkpoint = SimpleNamespace(chain=lambda *order: lambda token: chains[token])
    monkeypatch.setattr(host_tasks, "run_named", lambda *_: run)
    monkeypatch.setattr(host_tasks, "checkpoint_at", lambda *_: checkpoint)
    monkeypatch.setattr(host_tasks, "operator_named", lambda *_: None)
    monkeypatch.setattr(host_tasks, "store_of", lambda *_: made)
    monkeypatch.setattr(host_tasks, "freeze_once", lambda: None)
    return made


def test_key_groups_are_copied_or_deleted_in_the_order_that_was_asked(store: Store) -> None:
    answer = carry_out({"op": None}, {}, FACTS, "here", [COPY, DROP, EMPTY, BROKEN])  # type: ignore[dict-item]
    assert answer == TaskAnswer(
        "here", "here", "/arena of this host",
        (
            OrderDone(COPY, moved_bytes=(1 + 2) * 8 + 2 * 5),
            OrderDone(DROP),
            OrderDone(EMPTY),
            OrderDone(BROKEN, problem="group 4 has 3 bytes left"),
        ),
    )  # fmt: skip
    assert store.did == [
        "acquire 1 at a", "apply 2 sections", "release 1", "forget 2", "acquire 4 at b",
    ]  # fmt: skip


def test_a_task_ends_after_the_key_group_with_which_its_time_is_over(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    now_s = iter([100.0, 100.5, 101.0, 101.5, 200.0])
    monkeypatch.setattr(host_tasks, "time", SimpleNamespace(monotonic=lambda: next(now_s)))
    facts = FACTS | {"slice_s": 1.0}
    answer = carry_out({"op": None}, {}, facts, "here", [DROP] * 5)  # type: ignore[dict-item]
    assert len(answer.done) == 3


@pytest.mark.parametrize("host", ["wished", "other"])
def test_a_task_on_another_host_than_was_wished_only_says_where_it_is(
    store: Store, monkeypatch: pytest.MonkeyPatch, host: str
) -> None:
    facts = FACTS | {"hosts": ["first", "wished"], "work": {"wished": [asdict(DROP)]}}
    context = SimpleNamespace(getLocalProperty={HOST_TASK_PROPERTY: json.dumps(facts)}.get)
    monkeypatch.setattr(host_tasks, "TaskContext", SimpleNamespace(get=lambda: context))
    task = host_tasks._HostTask({"op": None}, {})  # type: ignore[dict-item]
    batch = pa.RecordBatch.from_pydict({"id": [1], "host": [host]})
    [out] = task(iter([batch]))
    answer = host_tasks._answer(out.column("answer")[0].as_py())
    done = (OrderDone(DROP),) if host == "wished" else ()
    assert answer == TaskAnswer("wished", host, "/arena of this host", done)
    assert store.did == ["forget 2"] * len(done)


def test_all_hosts_are_asked_in_one_job_with_a_text_for_sparks_page() -> None:
    said: dict[str, str] = {}
    tasks = object.__new__(HostTasks)
    tasks._spark = SimpleNamespace(sparkContext=SimpleNamespace(setLocalProperty=said.__setitem__))  # type: ignore[assignment]
    tasks._facts, tasks._name = dict(FACTS), "clicks"
    rows = [SimpleNamespace(answer=json.dumps(asdict(TaskAnswer(h, h, "/a")))) for h in "ab"]
    tasks._frames = {("a", "b"): SimpleNamespace(collect=lambda: rows)}  # type: ignore[dict-item]
    answers = tasks.run({"b": [COPY, DROP], "a": [EMPTY]}, 0.5)
    assert [answer.host for answer in answers] == ["a", "b"]
    assert said["spark.job.description"] == "clicks migration: 3 key groups on a, b"
    told = json.loads(said[HOST_TASK_PROPERTY])
    assert told.pop("work") == {"a": [asdict(EMPTY)], "b": [asdict(COPY), asdict(DROP)]}
    assert told == FACTS | {"hosts": ["a", "b"], "slice_s": 0.5}
