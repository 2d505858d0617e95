"""Channels and slots without any scaling: order, room, back-pressure, markers, watermarks."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from flows import OPERATOR, answer, arrivals, job, run
from signal_rules import busy

from headgate_lab.sim.dataflow.behaviours import Held, Pass, Weigh, Windows
from headgate_lab.sim.dataflow.channel import Network
from headgate_lab.sim.dataflow.clock import Clock
from headgate_lab.sim.dataflow.dataflow import Arrivals, Dataflow, Job, OperatorModel
from headgate_lab.sim.dataflow.elements import Record, Watermark
from headgate_lab.sim.dataflow.eventlog import EventLog
from headgate_lab.sim.dataflow.slot import Channel, Slot


def link(network: Network) -> tuple[Clock, Slot, Slot, Channel]:
    clock, log = Clock(), EventLog()
    sender, receiver = (Slot(name, 0, Pass(), 0.0, clock, log) for name in ("a/0", "b/0"))
    receiver.paused = True
    channel = Channel(sender, receiver, network)
    receiver.attach(channel)
    return clock, sender, receiver, channel


def test_at_one_time_things_happen_in_the_order_of_asking() -> None:
    clock, seen = Clock(), []
    clock.after(1.0, seen.append, "b")
    clock.after(0.5, seen.append, "a")
    clock.after(1.0, seen.append, "c")
    clock.run()
    assert seen == ["a", "b", "c"]


def test_no_more_is_sent_than_the_input_cache_has_room_for() -> None:
    clock, sender, _, channel = link(Network(input_records=3, output_records=4))
    for key in range(6):
        channel.push(Record(key, 0.0))
    clock.run()
    assert [r.key for r in channel.arrived if isinstance(r, Record)] == [0, 1, 2]
    assert len(channel.waiting) == 3
    assert sender.full == 0
    channel.push(Record(6, 0.0))
    assert sender.full == 1
    channel.take()
    clock.run()
    assert len(channel.arrived) == 3
    assert sender.full == 0


def test_control_elements_need_no_room_and_keep_their_place() -> None:
    clock, _, _, channel = link(Network(input_records=1))
    channel.push(Record(0, 0.0))
    channel.push(Watermark(1.0))
    channel.push(Record(1, 0.0))
    clock.run()
    assert [type(element).__name__ for element in channel.arrived] == ["Record", "Watermark"]


def test_a_packet_takes_the_latency_and_its_records() -> None:
    clock, _, _, channel = link(Network(latency_s=0.5, records_per_s=10.0))
    channel.push(Record(0, 0.0, 5))
    clock.run(0.99)
    assert not channel.arrived
    clock.run(1.0)
    assert len(channel.arrived) == 1


def test_a_full_operator_stops_the_sources() -> None:
    flow = run(busy(), None)
    (last,) = [max(at_s for at_s, _ in flow.outputs())]
    # 520 records of 10 ms in 3 s of arrivals: one slot needs 5.2 s.
    assert last == pytest.approx(5.2, abs=0.1)
    for source in flow.sources():
        assert max(source.put_out) > 3


def test_a_markers_latency_counts_what_its_record_waited_at_the_source() -> None:
    trial = busy()
    operators = tuple(
        replace(model, behaviour=Weigh()) if model.name == OPERATOR else model
        for model in trial.job.operators
    )
    marked = replace(trial.job, operators=operators, marker_every=10)
    flow = run(replace(trial, job=marked), None)
    latencies = [at_s - record.time_s for at_s, record in flow.outputs()]
    assert len(latencies) == 2 * 260 // 10
    # The caches hold 32 records of 10 ms; the rest of two seconds is the sources' own queue.
    assert max(latencies) > 1.8


def test_markers_pass_windows_at_once() -> None:
    held = Held()
    marker = Record(1, 0.2, marker=True)
    windows = Windows(1.0, 0.5)
    assert list(windows.record(held, marker)) == [marker]
    assert list(windows.record(held, Record(1, 0.3))) == []
    # Only the windows know when: [-0.5, 0.5) has both records.
    assert [r.value for r in windows.fire(held, 0.5)] == [(-1, 2, 0)]


def test_a_window_fires_once_and_a_record_after_it_is_told() -> None:
    held, windows = Held(), Windows(1.0, 1.0)
    windows.record(held, Record(1, 0.2))
    assert len(windows.fire(held, 1.0)) == 1
    assert len(windows.fire(held, 1.0)) == 0
    assert [r.value for r in windows.record(held, Record(1, 0.3))] == [("late", 0)]


def test_windows_are_those_of_a_dictionary() -> None:
    feed = arrivals(8, 200, 3.0, 10, 2)
    flow = Dataflow(job(feed=feed))
    flow.run()
    counts: dict[tuple[int, int], int] = {}
    for arrival in feed:
        for time_s, key in zip(arrival.times_s, arrival.keys, strict=True):
            for window in range(int(time_s // 0.5) - 1, int(time_s // 0.5) + 1):
                counts[key, window] = counts.get((key, window), 0) + 1
    assert {(k, v[0]): v[1] for (k, v), _ in answer(flow).items()} == counts


def test_an_element_of_many_records_costs_room_and_time_as_they_do() -> None:
    def end_s(count: int) -> float:
        times_s = np.zeros(60 // count)
        operators = (
            OperatorModel(
                "source", 1, 0.0, arrivals=(Arrivals(times_s, np.zeros(len(times_s), np.int64)),)
            ),
            OperatorModel(OPERATOR, 1, 0.01, Weigh(every=True), ("source",), 1, (1.0,)),
            OperatorModel("sink", 1, parents=(OPERATOR,)),
        )
        flow = Dataflow(Job(operators, Network(0.0, 1e9, 12, 12), count=count))
        flow.run()
        return flow.clock.now_s

    assert end_s(1) == pytest.approx(0.6)
    assert end_s(6) == pytest.approx(0.6)
