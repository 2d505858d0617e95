"""A slot that stays: what it answers to its driver and its routers, over channels in memory."""

from __future__ import annotations

import contextlib
import pickle
import queue
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest

from headgate.core.errors import EngineError
from headgate.spark.realtime import slot_process, words
from headgate.spark.realtime.channels import BrokenChannel
from headgate.spark.realtime.router import as_bytes
from headgate.spark.realtime.slot_process import SlotProcess

PATIENCE_S = 30.0
"""How long a test waits for what must come."""


@dataclass(frozen=True)
class Facts:
    """What the driver tells all slots of a step; `of_slot` it tells each for itself."""

    step: int
    watermark_us: int = 5
    of_slot: str = ""
    slot_rate: float | None = None
    groups: tuple[int, ...] = ()

    def groups_of(self, slot: int) -> tuple[int, ...]:
        return self.groups


@dataclass(frozen=True)
class Task:
    """Answers with what it was asked; fails where a record says how."""

    operator: str = "op"
    spec: Any = field(default_factory=SimpleNamespace)
    store: Any = None

    def answer(self, facts, slot, records, consumed, watermark_us, began):
        numbers = records.column("n").to_pylist()
        if -1 in numbers:
            raise OSError("no room here")
        if -2 in numbers:
            raise Unspeakable("no", "word")
        return (facts.step, facts.of_slot, slot, numbers, watermark_us, dict(self.store)), None


class Unspeakable(Exception):
    """An error that pickle does not give back."""

    def __init__(self, what: str, where: str) -> None:
        super().__init__(f"{what} {where}")


class End:
    """One end of a channel in memory: what the peer says is told to it by the test."""

    def __init__(self) -> None:
        self.told: queue.Queue[Any] = queue.Queue()
        self.said: queue.Queue[Any] = queue.Queue()
        self.closed = False

    def recv(self) -> Any:
        try:
            message = self.told.get(timeout=PATIENCE_S)
        except queue.Empty:
            message = ConnectionError(
                "the test is over"
            )  # a thread that still listens ends quietly
        if isinstance(message, Exception):
            raise message
        return message

    def send(self, message: Any) -> None:
        self.said.put(message)

    def close(self) -> None:
        self.closed = True

    def heard(self) -> Any:
        return self.said.get(timeout=PATIENCE_S)


class Slot:
    """A slot process in a thread, its driver and its routers."""

    def __init__(self, routers: int, *, shared: bool = False) -> None:
        self.driver, self.door = End(), End()
        self.others: dict[str, End] = {}
        """Other slots, by address."""
        self.door.address = "the door"  # type: ignore[attr-defined]
        self.door.accept = self.door.recv  # type: ignore[attr-defined]
        meeting: Any = SimpleNamespace(
            driver="the driver",
            connect=self._connect,
            door=lambda *_: contextlib.nullcontext(self.door),
        )
        process = SlotProcess(meeting, "op", 3, {"endpoint": "here"})
        self.thread = threading.Thread(target=process.run, daemon=True)
        self.thread.start()
        self.first = self.driver.heard()
        self.driver.told.put(
            (words.BEGIN, pickle.dumps(Task(spec=SimpleNamespace(shared=shared))), routers, {})
        )
        self.ready = self.driver.heard()
        self.routers = [End() for _ in range(routers)]
        for number, router in enumerate(self.routers):
            router.told.put(number)
            self.door.told.put(router)

    def serve(self, step: int, *, slot: int = 3) -> None:
        self.driver.told.put((words.SERVE, pickle.dumps(Facts(step)), {"of_slot": "mine"}, slot))

    def _connect(self, address: str) -> Any:
        if address == "the driver":
            return contextlib.nullcontext(self.driver)
        if address == "nobody":
            raise OSError
        return self.others.setdefault(address, End())

    def has_ended(self) -> bool:
        self.thread.join(PATIENCE_S)
        return not self.thread.is_alive()


@pytest.fixture
def slot_of(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[int], Slot]]:
    monkeypatch.setattr(slot_process, "warm", lambda spec: None)
    monkeypatch.setattr(slot_process, "freeze_once", lambda: None)
    empty = pa.table({"n": pa.array([], pa.int64())})
    monkeypatch.setattr(slot_process, "operator_named", lambda *_: None)
    monkeypatch.setattr(slot_process, "no_records", lambda _: empty)
    made: list[Slot] = []

    def make(routers: int, *, shared: bool = False) -> Slot:
        made.append(Slot(routers, shared=shared))
        return made[-1]

    yield make
    for slot in made:
        slot.driver.told.put((words.END,))
        assert slot.has_ended()


def rows(*numbers: int) -> bytes:
    table, sink = pa.table({"n": pa.array(numbers, pa.int64())}), pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    made: bytes = sink.getvalue().to_pybytes()
    return made


def report(step: int, numbers: list[int], slot: int = 3) -> tuple[Any, ...]:
    return (step, "mine", slot, numbers, 5, {"endpoint": "here"})


def test_a_slot_says_who_it_is_and_where_its_door_is(slot_of: Callable[[int], Slot]) -> None:
    slot = slot_of(0)
    assert slot.first[:2] == (words.SLOT, ("op", 3))
    assert slot.ready == (words.READY, "the door")


def test_an_epoch_is_served_once_all_routers_have_told_it_in_their_order(
    slot_of: Callable[[int], Slot],
) -> None:
    slot = slot_of(2)
    first, second = slot.routers
    slot.driver.told.put((words.RECORDS, rows(0)))
    slot.serve(7)
    second.told.put((words.RECORDS, rows(20)))
    second.told.put((words.EPOCH, 7, {0: 900, 1: 100}, rows(21)))
    second.told.put((words.RECORDS, rows(22)))  # of the next epoch
    second.told.put((words.EPOCH, 8, {}, None))
    first.told.put((words.RECORDS, rows(10)))
    first.told.put((words.EPOCH, 7, {0: 300, 2: 200}, None))
    assert slot.driver.heard() == (
        words.REPORT, report(7, [0, 10, 20, 21]), {0: 900, 1: 100, 2: 200},
    )  # fmt: skip
    first.told.put((words.EPOCH, 8, {}, None))
    slot.serve(8, slot=1)
    assert slot.driver.heard() == (words.REPORT, report(8, [22], slot=1), {})


def test_a_slot_at_a_fixed_rate_waits_for_the_time_of_its_records(
    slot_of: Callable[[int], Slot], monkeypatch: pytest.MonkeyPatch
) -> None:
    waits_s: list[float] = []
    monkeypatch.setattr(slot_process.time, "sleep", waits_s.append)
    slot = slot_of(1)
    for epoch, numbers in enumerate(([1, 2, 3], [])):
        slot.routers[0].told.put((words.EPOCH, epoch, {}, rows(*numbers)))
        slot.driver.told.put((words.SERVE, pickle.dumps(Facts(epoch, slot_rate=4.0)), {}, 3))
        assert slot.driver.heard()[0] == words.REPORT
    assert waits_s == [0.75, 0.0]


def test_a_slot_passes_a_routers_messages_on_in_that_routers_name(
    slot_of: Callable[..., Slot],
) -> None:
    slot = slot_of(1, shared=True)
    table = pa.table({"g": pa.array([0, 1, 1], pa.int32()), "n": [1, 1, 1]})
    sent = [(words.RECORDS, as_bytes(table)), (words.EPOCH, 7, {0: 9}, None)]
    for message in sent:
        slot.routers[0].told.put((words.RELAY, ["b", "c"], message))
    slot.driver.told.put((words.SERVE, pickle.dumps(Facts(7, groups=(1,))), {}, 0))
    assert slot.driver.heard()[1][3] == [0, 1, 1]  # only what is in its own key groups counts
    assert [slot.others["b"].heard() for _ in range(3)] == [0, *sent]
    assert [slot.others["c"].heard() for _ in range(3)] == [0, *sent]
    slot.routers[0].told.put((words.RELAY, ["c"], (words.EPOCH, 8, {}, None)))
    assert slot.others["c"].heard() == (words.EPOCH, 8, {}, None)
    assert (slot.others["b"].closed, slot.others["c"].closed) == (True, False)
    slot.routers[0].told.put((words.RELAY, ["nobody"], (words.EPOCH, 9, {}, None)))
    word, error = slot.driver.heard()
    assert (word, error.transient) == (words.FAILED, True)
    assert str(error).startswith("the slot at nobody is lost")


def test_records_of_an_epoch_are_those_of_the_channel_that_ends_it(
    slot_of: Callable[[int], Slot],
) -> None:
    """After a change another slot relays; the old one's last messages may come behind its first."""
    slot = slot_of(1)
    slot.door.told.put(again := End())
    again.told.put(0)  # the same router
    again.told.put((words.RECORDS, rows(20)))
    again.told.put((words.EPOCH, 8, {}, None))
    again.told.put((words.RECORDS, rows(30)))
    while not again.told.empty():
        time.sleep(0.01)
    slot.routers[0].told.put((words.RECORDS, rows(10)))
    slot.routers[0].told.put((words.EPOCH, 7, {}, None))
    for epoch, numbers in ((7, [10]), (8, [20])):
        slot.serve(epoch)
        assert slot.driver.heard() == (words.REPORT, report(epoch, numbers), {})


def test_an_epoch_without_a_record_is_answered_too(slot_of: Callable[[int], Slot]) -> None:
    slot = slot_of(1)
    slot.routers[0].told.put((words.EPOCH, 0, {}, None))
    slot.serve(0)
    assert slot.driver.heard() == (words.REPORT, report(0, []), {})


def test_a_slot_ends_with_its_driver_and_not_with_a_router(
    slot_of: Callable[[int], Slot],
) -> None:
    slot = slot_of(1)
    slot.routers[0].told.put((words.EPOCH, 0, {}, rows(1)))
    slot.routers[0].told.put(EOFError())
    slot.door.told.put(router := End())
    router.told.put(EOFError())  # it goes before it says its number
    slot.serve(0)
    assert slot.driver.heard() == (words.REPORT, report(0, [1]), {})
    slot.driver.told.put(EOFError())
    assert slot.has_ended()


def test_a_channel_that_is_broken_is_told_as_a_failure_that_may_pass(
    slot_of: Callable[[int], Slot],
) -> None:
    slot = slot_of(1)
    slot.routers[0].told.put(BrokenChannel("a frame is damaged"))
    word, error = slot.driver.heard()
    assert (word, str(error)) == (words.FAILED, "a frame is damaged")
    assert isinstance(error, EngineError)
    assert error.transient
    assert slot.has_ended()


def test_the_system_refusing_a_slots_work_is_told_and_is_not_the_end(
    slot_of: Callable[[int], Slot],
) -> None:
    slot = slot_of(1)
    slot.routers[0].told.put((words.EPOCH, 0, {}, rows(-1)))
    slot.serve(0)
    word, error = slot.driver.heard()
    assert (word, type(error), str(error)) == (words.FAILED, OSError, "no room here")
    slot.routers[0].told.put((words.EPOCH, 1, {}, rows(1)))
    slot.serve(1)
    assert slot.driver.heard() == (words.REPORT, report(1, [1]), {})


def test_an_error_that_cannot_be_sent_is_told_by_its_text_and_is_the_end(
    slot_of: Callable[[int], Slot],
) -> None:
    slot = slot_of(1)
    slot.routers[0].told.put((words.EPOCH, 0, {}, rows(-2)))
    slot.serve(0)
    word, error = slot.driver.heard()
    assert (word, type(error)) == (words.FAILED, EngineError)
    assert str(error) == "Unspeakable: no word"
    assert slot.has_ended()


def test_a_task_that_cannot_be_read_is_told_before_the_slot_is_ready(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(spec: Any) -> None:
        raise ValueError("no such kind")

    monkeypatch.setattr(slot_process, "warm", refuse)
    slot = Slot(0)
    word, error = slot.ready
    assert (word, str(error)) == (words.FAILED, "no such kind")
    assert slot.has_ended()
