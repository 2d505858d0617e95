"""Tests how a machine's batches are broken off, passed on or refused, and how it ends; without Spark."""

from __future__ import annotations

import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from noted_calls import Calls

from headgate.core.errors import CheckpointError, EngineError
from headgate.spark.job.phases import Phases
from headgate.spark.step import machine
from headgate.spark.step.batch_thread import BatchThreads, BrokenOff
from headgate.spark.step.machine import StepMachine

LATEST: Any = SimpleNamespace(
    step=4, spark_batch=9, watermarks={"evict_us": 70}, engine={"sources": ["3"]}
)


class Machine:
    """A machine whose work, steps and log note their calls."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.calls = calls = Calls(monkeypatch)
        self.intake = calls.several(
            enter=None, nothing="no rows", close=None, go_on_soon=None, look_through=None
        )
        self.intake.stream = "the stream"
        self.work = calls.several(
            last_watermark_us=500, passed_on=None, settle_in=None, arrived=None, quiet=False
        )
        self.due: list[bool] = []
        self.work.due = self._due
        self.work.intake, self.work.has_steps, self.work.columns = self.intake, True, {"a": 1}
        self.work.waits = self.work.changing = False
        self.steps = calls.several(begin_batch=None, run=None, close=None, commit_epoch="a manifest",
                                   note_quiet=None, deliver_again=None)  # fmt: skip
        self.steps.sink, self.steps.latest = calls.several(write=None), LATEST
        self.log = calls.several(refuse_batch=None)
        self.log.active = True
        self.context = calls.several(setJobGroup=None, cancelJobGroup=None)
        self.checkpoint = calls.several(refuse_after_another=None)
        self.checkpoint.location, self.checkpoint.path = "at", Path("p")
        calls.put(machine, check_has_state=None, check_columns=None)
        monkeypatch.setattr(machine, "Steps", calls.one("Steps", self.steps))
        monkeypatch.setattr(machine, "SparkLog", lambda spark: self.log)
        monkeypatch.setattr(
            machine, "time", SimpleNamespace(time=lambda: 8.0, monotonic=lambda: 100.0)
        )
        self.ports: Any = SimpleNamespace(commands=calls.several(poll=None))
        self.made: Any = self.machine()

    def _due(self, *given: Any) -> bool:
        self.calls.did.append(("due", *given))
        return self.due.pop(0)

    def machine(self, **more: Any) -> Any:
        made = self.machine_of(LATEST, **more)
        self.calls.did.clear()
        return made

    def machine_of(self, latest: Any, **more: Any) -> StepMachine[Any]:
        spark: Any = SimpleNamespace(sparkContext=self.context)
        given: Any = (spark, self.work, self.checkpoint, latest, "the sink", self.ports)
        return StepMachine(*given, **more)


@pytest.fixture
def of(monkeypatch: pytest.MonkeyPatch) -> Machine:
    return Machine(monkeypatch)


def test_a_machine_begins_with_what_its_checkpoint_has(of: Machine) -> None:
    made: Any = of.machine_of(None)
    assert of.calls.did[0] == ("check_has_state", "at", Path("p"))
    _, *steps, ends = of.calls.did[1]
    assert steps == [of.work, of.work, of.checkpoint, None, "the sink"]
    assert not ends()
    made.stopping.set()
    assert ends()
    of.work.waits = True
    of.calls.did.clear()
    held: Any = of.machine_of(LATEST, held=True)
    assert of.calls.did[0] == ("check_columns", "at", LATEST, {"a": 1}, "rows that wait")
    assert held.steps.sources == ["3"]
    assert of.machine_of(LATEST).steps.sources is None
    assert (held.batches_begun, held.settled_batch, held.awaited) == (0, 0, 0)
    of.work.waits = of.work.has_steps = False
    of.calls.did.clear()
    of.machine_of(None)
    of.machine_of(LATEST)
    assert of.calls.names() == ["Steps", "Steps"]


def test_a_batch_of_a_query_without_steps_is_passed_on(
    of: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    of.work.has_steps = False
    monkeypatch.setattr(Phases, "lap", of.calls.one("lap"))
    batch: Any = "rows"
    of.made.process(batch, 3)
    clock, phases = of.calls.did[3][1], of.calls.did[4][2]
    assert of.calls.did == [
        ("begin_batch", 3), ("poll",), ("write", 3, "rows"), ("lap", clock, "sink"),
        ("passed_on", 3, phases),
    ]  # fmt: skip
    assert phases is clock.phases_ms
    assert of.made.batches_begun == 1
    assert of.made.idle.is_set()


def test_a_batch_that_begins_while_the_query_stops_is_left_to_the_next_start(of: Machine) -> None:
    idle: list[bool] = []
    of.log.refuse_batch = lambda: idle.append(of.made.idle.is_set())
    of.made.stopping.set()
    of.work.has_steps = False
    of.made.process("rows", 3)
    assert idle == [True], "who stops the query waits for no batch"


def test_requests_are_carried_out_between_batches(of: Machine) -> None:
    of.made.run_commands()
    assert of.calls.did == [("poll",)]


def test_an_epoch_is_a_step_of_the_stream(of: Machine) -> None:
    clock = Phases()
    assert of.made.epoch(7, 60, ["5"], clock, read_ms=4.0) == "a manifest"
    assert of.calls.did == [("commit_epoch", "the stream", 7, 60, clock)]
    assert (of.made.steps.sources, of.made.steps.read_ms, of.made.batches_begun) == (["5"], 4.0, 1)
    assert of.made.idle.is_set()


@pytest.mark.parametrize("stopped", [True, False])
def test_what_fails_in_a_batch_that_was_broken_off_is_no_failure(
    of: Machine, stopped: bool
) -> None:
    seen: list[bool] = []

    def fails(*_: Any) -> None:
        seen.extend([of.made.is_of_this_thread, of.made.idle.is_set()])
        if stopped:
            of.made.interrupted.set()
        raise OSError("it breaks")

    of.steps.sink.write, of.work.has_steps = fails, False
    if stopped:
        of.made.process("rows", 3)
        assert of.calls.did[-1] == ("refuse_batch",)
    else:
        with pytest.raises(OSError, match="it breaks"):
            of.made.process("rows", 3)
        assert "refuse_batch" not in of.calls.names()
    assert seen == [True, False]
    assert (of.made.is_of_this_thread, of.made.idle.is_set()) == (False, True)


def test_a_batch_is_broken_off_once_a_handle_stops_it_unless_it_is_the_drain(of: Machine) -> None:
    made = of.made
    assert not made.is_broken_off
    of.log.active = False
    assert made.is_broken_off
    made._drains = True
    assert not made.is_broken_off
    made.interrupted.set()
    assert made.is_broken_off
    made.interrupted.clear()
    made._drains, made.log = False, SimpleNamespace()
    assert not made.is_broken_off, "the JVM has ended"


@pytest.mark.parametrize("raising", [True, False])
def test_jobs_are_cancelled_and_their_threads_told(
    of: Machine, monkeypatch: pytest.MonkeyPatch, raising: bool
) -> None:
    monkeypatch.setattr(BatchThreads, "raise_in", of.calls.one("raise_in"))
    of.made.cancel("8e", raising=raising)
    told = [("raise_in", of.made.threads)] if raising else []
    assert of.calls.did == [("cancelJobGroup", "8e"), *told]


def test_a_user_s_function_that_leaves_python_is_told_in_one_sentence(of: Machine) -> None:
    of.steps.sink.write, of.work.has_steps = lambda *_: (_ for _ in ()).throw(SystemExit()), False
    with pytest.raises(
        EngineError,
        match=r"^the query's own function ended with SystemExit.*; call the query's stop",
    ) as left:
        of.made.process("rows", 3)
    assert of.made.failed is left.value
    of.steps.sink.write = lambda *_: (_ for _ in ()).throw(BrokenOff())
    with pytest.raises(BrokenOff):
        of.made.process("rows", 3)


def test_the_last_steps_serve_what_is_due_at_the_last_watermark(of: Machine) -> None:
    of.due = [True, True, False]
    of.made.drain("8e")
    last = ("run", "no rows", 9, 500, {"started_ms": 8000.0, "drain": True})
    step = [("due", 500, 8000.0), ("enter",), ("nothing",), last]
    assert of.calls.did == [
        ("setJobGroup", "8e", "", {"interruptOnCancel": True}),
        ("last_watermark_us", LATEST, of.log), *step, *step, ("due", 500, 8000.0),
    ]  # fmt: skip
    assert of.made._drains
    of.due = [True]
    of.made.stopping.set()
    of.made.drain("8e")
    assert of.calls.did[-1] == ("due", 500, 8000.0)
    of.calls.did.clear()
    of.work.has_steps = False
    of.made.drain("8e")
    of.work.has_steps, of.steps.latest = True, None
    of.made.drain("8e")
    assert of.calls.did == []


def test_a_query_that_holds_work_drains_its_backlog_at_its_own_watermark(of: Machine) -> None:
    held, waits = of.machine(held=True), iter([True, False])
    of.work = SimpleNamespace(**vars(of.work))
    kind = type("Work", (SimpleNamespace,), {"waits": property(lambda work: next(waits))})
    told = {name: value for name, value in vars(of.work).items() if name != "waits"}
    held.work = kind(**told)
    held.drain("8e")
    assert of.calls.did[-1] == ("run", "no rows", 9, 70, {"started_ms": 8000.0, "drain": True})


def test_whoever_gives_up_waits_for_the_batch_that_runs(of: Machine) -> None:
    of.made.threads.begin()
    ended = threading.Thread(target=of.made.give_up)
    ended.start()
    of.made.stopping.wait(5)
    assert ended.is_alive()
    of.made.threads.end()
    ended.join(5)
    assert not ended.is_alive()
    of.made.close()
    assert of.calls.did == [("close",), ("close",)]


def test_a_failure_is_the_last_batch_s_or_that_of_another_driver(of: Machine) -> None:
    assert of.made.failed is None
    of.checkpoint.refuse_after_another = of.calls.one("asked", CheckpointError("another"))
    assert str(of.made.failed) == "another"
    assert of.calls.did[-1] == ("asked", 4)
    assert of.made.note_failure(error := OSError("disk")) is of.made.failed is error
