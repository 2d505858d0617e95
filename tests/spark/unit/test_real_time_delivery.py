"""Outputs of epochs: they go out in order beside the next epochs, and open ones again after a start."""

from __future__ import annotations

import cProfile
import threading
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from test_machine import FakeWork, machine

from headgate.checkpoint.manifest import DELIVERED, REAL_TIME, Manifest
from headgate.core.errors import ConfigError
from headgate.spark.api.real_time import RealTimeFlow
from headgate.spark.job.phases import Phases
from headgate.spark.realtime.deliveries import Deliveries
from headgate.spark.settings import options as own
from headgate.spark.sinks.kafka_sink import KafkaSink
from headgate.spark.sinks.sinks import ConsoleSink, FunctionSink, NoopSink
from headgate.spark.step.batch_thread import BatchThreads
from headgate.spark.step.steps import delivered_output


class Out:
    """Takes outputs, when it may."""

    def __init__(self) -> None:
        self.may = threading.Event()
        self.did: list[tuple[str, list[int]]] = []
        self.error: Exception | None = None
        self.threads = BatchThreads()
        self.deliveries = Deliveries(self.threads, self.deliver, self.note, lambda: None, 5)

    def deliver(self, manifests: Sequence[Manifest]) -> None:
        assert self.may.wait(30)
        if self.error is not None:
            raise self.error
        self.did.append(("rows", [m.step for m in manifests]))

    def note(self, manifests: Sequence[Manifest]) -> None:
        self.did.append(("noted", [m.step for m in manifests]))

    def put(self, step: int) -> None:
        manifest: Any = SimpleNamespace(step=step)
        self.deliveries.put_rows(manifest)
        self.deliveries.put_committed(manifest)


def test_outputs_that_wait_go_out_together_in_their_order() -> None:
    out = Out()
    for step in range(5):
        out.put(step)
        assert not out.threads.idle.is_set()
    out.may.set()
    out.deliveries.close()
    assert [n for what, steps in out.did if what == "rows" for n in steps] == list(range(5))
    assert [n for what, steps in out.did if what == "noted" for n in steps] == list(range(5))
    assert len(out.did) <= 4
    assert out.threads.idle.is_set()


def test_an_output_goes_out_before_its_epoch_is_committed_and_is_noted_after_that() -> None:
    out = Out()
    out.may.set()
    first, second = (cast("Any", SimpleNamespace(step=step)) for step in range(2))
    out.deliveries.put_rows(first)
    out.threads.idle.wait()
    assert out.did == [("rows", [0])]
    out.deliveries.put_committed(first)
    out.threads.idle.wait()
    assert out.did == [("rows", [0]), ("noted", [0])]
    out.deliveries.put_rows(second)
    out.deliveries.close()
    assert out.did[2:] == [("rows", [1])]


def test_an_epoch_waits_while_too_many_are_open() -> None:
    out = Out()
    for step in range(4):
        out.put(step)
    out.deliveries.wait_for_room(threading.Event())
    out.put(4)
    waiting = threading.Thread(target=out.deliveries.wait_for_room, args=(threading.Event(),))
    waiting.start()
    waiting.join(0.2)
    assert waiting.is_alive()
    out.may.set()
    waiting.join(30)
    assert not waiting.is_alive()


def test_a_delivery_that_fails_is_raised_where_the_next_epoch_begins() -> None:
    out = Out()
    out.error = ValueError("no sink")
    out.put(0)
    out.may.set()
    assert out.threads.idle.wait(30)
    with pytest.raises(ValueError, match="no sink"):
        out.deliveries.wait_for_room(threading.Event())
    out.put(1)
    assert out.threads.idle.is_set()
    assert not out.did


class Epochs(FakeWork):
    """Work whose steps are epochs, of which none is delivered by itself."""

    def manifest(self, begun: Any, reports: list[Any]) -> Manifest:
        made = super().manifest(begun, reports)
        return replace(made, engine={**made.engine, "drain": True, REAL_TIME: {DELIVERED: -1}})


def epochs(path: Path, count: int, has: Any = None) -> tuple[Any, Epochs, list[Manifest]]:
    work = Epochs()
    work.intake.stream = None
    made = machine(path, work, {})
    if has is not None:
        made.steps.sink.has = has
    first = 0 if made.latest is None else made.latest.step + 1
    found = [made.epoch(n, 0, [str(n)], Phases(), read_ms=0.0) for n in range(first, first + count)]
    return made, work, found


def test_what_was_committed_and_not_delivered_goes_out_at_the_next_start(tmp_path: Path) -> None:
    made, work, found = epochs(tmp_path, 4)
    assert not [one for one in work.did if "sink" in one]
    made.steps.note_delivered(found[:2])
    made.close()
    again, work, _ = epochs(tmp_path, 0)
    again.steps.redeliver_drained()
    assert work.did == ["sink 2", "sink 3"]


def test_what_a_sink_must_have_is_what_no_start_delivers_again(tmp_path: Path) -> None:
    made, _, found = epochs(tmp_path, 4)
    made.steps.note_delivered(found[:2])
    made.close()
    store, log = made.checkpoint, tmp_path / "spark"
    assert delivered_output(store, found[3], log) == found[1].engine["sink_batch"] == 1
    # of Spark's batches it is Spark that says so
    batch = replace(found[3], engine={**found[3].engine, "drain": False})
    assert delivered_output(store, batch, log) == 2
    (log / "commits").mkdir(parents=True)
    (log / "commits" / str(batch.spark_batch)).touch()
    assert delivered_output(store, batch, log) == 3


def test_a_sink_that_has_a_later_step_gets_no_earlier_one_again(tmp_path: Path) -> None:
    epochs(tmp_path, 3)[0].close()
    again, work, _ = epochs(tmp_path, 0, has=lambda number: number <= 1)
    again.steps.redeliver_drained()
    assert work.did == ["sink 2"]


def test_kafka_says_which_steps_readers_see() -> None:
    sink: Any = object.__new__(KafkaSink)
    sink._writer = SimpleNamespace(last=4)
    assert [sink.has(number) for number in (3, 4, 5)] == [True, True, False]
    sink._writer.last = None
    assert not sink.has(0)


def test_a_thread_that_is_profiled_does_batch_after_batch() -> None:
    """An exception that is taken back, though none was raised, hangs a thread that a profiler follows."""
    threads, done = BatchThreads(), []

    def work() -> None:
        for _ in range(3):
            threads.begin()
            with threads.working():
                done.append(1)
            threads.end()

    thread = threading.Thread(target=cProfile.Profile().runcall, args=(work,), daemon=True)
    thread.start()
    thread.join(30)
    assert len(done) == 3
    assert threads.idle.is_set()


def test_what_skips_an_output_by_its_number_is_not_written_early() -> None:
    """After a loss an epoch comes again with other records under its number, which would be lost."""
    flow = RealTimeFlow(cast("Any", None), cast("Any", None))
    early = cast("Any", SimpleNamespace(options={own.RELEASE.key: own.EARLY}))
    late = cast("Any", SimpleNamespace(options={}))
    stream = cast("Any", SimpleNamespace(early=False))
    for sink in (NoopSink(), ConsoleSink({}), FunctionSink(print, stream)):
        flow.begin_sink(sink, early)
    assert stream.early  # so that hg.merge in the function refuses
    skips = cast("Any", SimpleNamespace(description="FileSink[/out]"))
    flow.begin_sink(skips, late)
    with pytest.raises(ConfigError, match=r'release\("early"\) loses rows in FileSink\[/out\]'):
        flow.begin_sink(skips, early)
