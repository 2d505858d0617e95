"""Pools on Spark, without Spark: what a replica is given, and what its pool remembers."""

from __future__ import annotations

import dataclasses
import time
from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pyarrow as pa
import pytest

from headgate.checkpoint.checkpoint import Checkpoint
from headgate.checkpoint.manifest import Manifest
from headgate.control.estimators.service_time import ServiceTimeEstimate
from headgate.control.pools.groupings import Groupings
from headgate.control.pools.replicas import Interval, ReplicaDecision, ReplicaPool
from headgate.core.errors import CheckpointError, ConfigError
from headgate.journal.reader import read
from headgate.report.live import event_text
from headgate.report.run import Run
from headgate.report.why import why, why_lines
from headgate.spark.api.configured import pool_config
from headgate.spark.api.writer import Writer
from headgate.spark.job.pools import PoolConfig, PoolState, stride
from headgate.spark.job.reports import Payload, ReplicaReport
from headgate.spark.pools.pool_record import PoolRecorder
from headgate.spark.step.outcome import Outcome
from headgate.spark.worker import replica
from headgate.spark.worker.replica import ARRIVED, Feed, _backlog, _kept

CONFIG = PoolConfig(least=1, most=4, start=2, interval_s=1.0)


def writer() -> Any:
    return Writer(cast("Any", SimpleNamespace(sparkSession=None)))


@pytest.mark.parametrize("rate", ["0", "-1", "many", "nan"])
def test_a_rate_that_no_replica_can_serve_at_is_refused(rate: str) -> None:
    spark = cast("Any", SimpleNamespace(sparkContext=SimpleNamespace(defaultParallelism=2)))
    with pytest.raises(ConfigError, match=r"headgate.slotRate=.* use a number above 0"):
        pool_config(spark, (1, 4, 1), {"headgate.slotRate": rate}, None)


def test_a_policy_over_pools_that_shall_only_advise_is_refused_and_does_not_act() -> None:
    with pytest.raises(ConfigError, match=r"psps\(naive\) cannot only advise; leave out"):
        writer().policy("psps").advise().start()


def rows(start: int, count: int) -> pa.RecordBatch:
    arrived = pa.array([None] * count, pa.float64())
    return pa.record_batch({"v": list(range(start, start + count)), ARRIVED: arrived})


def values(batches: list[pa.RecordBatch]) -> list[int]:
    return [v for batch in batches for v in batch.column("v").to_pylist()]


def report(lane: int = 0, taken: int = 0, arrived: int = 0, waiting: int = 0) -> ReplicaReport:
    return ReplicaReport(
        step=0,
        attempt=1,
        operator="map-0",
        lane=lane,
        token="t",
        taken=taken,
        arrived=arrived,
        served=taken + arrived - waiting,
        waiting_rows=waiting,
        output=None,
        waiting=Payload(None, f"file-{lane}", 1, 0) if waiting else None,
        output_rows=0,
        useful_s=0.5,
        histogram=(),
        latency_sum_ms=0.0,
    )


def test_a_function_is_given_what_waited_before_what_came() -> None:
    feed = Feed([rows(0, 3)], [rows(3, 3)], None, None, 0.0)
    assert values(list(feed)) == [0, 1, 2, 3, 4, 5]
    assert (feed.finish(), feed.served, len(feed.latency_ms)) == ([], 6, 6)


def test_beyond_its_quota_what_came_is_left_and_what_waited_stays_where_it_is() -> None:
    feed = Feed([rows(0, 3)], [rows(3, 3)], 2, None, 7.0)
    assert values(list(feed)) == [0, 1]
    left = feed.finish()
    assert values(left) == [3, 4, 5]
    assert left[0].column(ARRIVED).to_pylist() == [7.0] * 3
    assert feed.served == 2


def test_many_rows_are_given_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replica, "_CHUNK_ROWS", 4)
    feed = Feed([rows(0, 10)], [rows(10, 3)], None, None, 0.0)
    pieces = list(feed)
    assert [piece.num_rows for piece in pieces] == [4, 4, 2, 3]
    assert values(pieces) == list(range(13))
    assert (feed.finish(), feed.served) == ([], 13)


def test_a_batch_that_came_may_be_cut() -> None:
    feed = Feed([rows(0, 3)], [rows(3, 3), rows(6, 2)], 4, None, 0.0)
    assert values(list(feed)) == [0, 1, 2, 3]
    assert values(feed.finish()) == [4, 5, 6, 7]


def test_a_replica_without_quota_serves_nothing_and_loses_nothing() -> None:
    feed = Feed([], [rows(0, 3)], 0, None, 0.0)
    assert list(feed) == []
    assert values(feed.finish()) == [0, 1, 2]


def test_when_the_time_is_up_the_rest_is_left() -> None:
    feed = Feed([], [rows(0, 3)], None, 0.0, 0.0)
    assert list(feed) == []
    assert values(feed.finish()) == [0, 1, 2]


def aged(start: int, count: int, arrived_ms: float) -> pa.RecordBatch:
    arrived = pa.array([arrived_ms] * count, pa.float64())
    return pa.record_batch({"v": list(range(start, start + count)), ARRIVED: arrived})


def test_rows_that_are_too_old_when_their_turn_comes_are_dropped_and_take_no_time() -> None:
    now_ms = time.time() * 1e3
    waiting = [aged(0, 3, now_ms - 60_000), aged(3, 2, now_ms - 1_000)]
    feed = Feed(waiting, [aged(5, 4, now_ms)], 3, None, now_ms, timeout_s=30.0)
    assert values(list(feed)) == [3, 4, 5]
    assert values(feed.finish()) == [6, 7, 8]
    assert (feed.served, feed.too_old, len(feed.latency_ms)) == (3, 3, 3)


def test_without_a_timeout_no_row_is_too_old() -> None:
    feed = Feed([aged(0, 3, 0.0)], [], None, None, 0.0)
    assert values(list(feed)) == [0, 1, 2]
    assert (feed.finish(), feed.too_old) == ([], 0)


def test_what_comes_to_a_full_queue_is_dropped_the_newest_first_and_evenly() -> None:
    state = PoolState.fresh(CONFIG)
    state.backlog = {0: [["old", 0, 5]]}
    reports = [report(0, arrived=40, waiting=30), report(1, arrived=20, waiting=10)]
    state.apply(reports, [0, 1])
    state.refuse(25, reports, [0, 1])
    assert state.backlog == {0: [["old", 0, 5], ["file-0", 0, 15]], 1: [["file-1", 0, 5]]}
    assert state.dropped["queue_full"] == 20
    state.refuse(25, [], [0, 1])
    assert sum(state.queued()) == 25
    back = PoolState.recovered(CONFIG, state.facts())
    assert (back.dropped["queue_full"], back.backlog) == (20, state.backlog)


def test_what_waited_before_is_never_refused() -> None:
    state = PoolState.fresh(CONFIG)
    state.backlog = {0: [["old", 0, 50]]}
    reports = [report(1, arrived=9, waiting=9)]
    state.apply(reports, [0, 1])
    state.refuse(10, reports, [0, 1])
    assert (state.backlog, state.dropped["queue_full"]) == ({0: [["old", 0, 50]]}, 9)


def test_a_manifest_of_an_earlier_release_has_dropped_nothing() -> None:
    assert not PoolState.recovered(CONFIG, {"active": [0], "backlog": {}}).dropped


def test_a_function_that_takes_longer_to_set_up_than_its_time_is_still_given_rows() -> None:
    feed = Feed([], [rows(0, 3)], None, 0.01, 0.0)
    time.sleep(0.02)
    assert next(feed).num_rows == 3


def test_what_a_function_does_not_want_is_not_kept() -> None:
    feed = Feed([], [rows(0, 3), rows(3, 3)], None, None, 0.0)
    next(feed)
    assert (feed.finish(), feed.served) == ([], 6)


def test_a_deactivated_replica_has_a_task_until_what_it_holds_is_served() -> None:
    state = PoolState.fresh(CONFIG)
    state.apply([report(0, arrived=10), report(1, arrived=10, waiting=6)], [0, 1])
    state.pool = ReplicaPool((True, False, False, False))
    assert (state.active, state.lanes, state.queued()) == ([0], [0, 1], [0, 6, 0, 0])
    state.apply([report(0), report(1, taken=4)], [0, 1])
    assert state.backlog == {1: [["file-1", 4, 2]]}
    state.apply([report(0), report(1, taken=2)], [0, 1])
    assert state.lanes == [0]


def test_new_rows_go_to_active_replicas_only_and_least_to_one_that_waits() -> None:
    state = PoolState.fresh(CONFIG)
    state.pool = ReplicaPool((True, True, True, False))
    state.backlog = {1: [["f", 0, 40]], 3: [["g", 0, 40]]}
    state.event = ServiceTimeEstimate(0.01)
    taken = Counter(state.order(CONFIG, 60))
    assert set(taken) == {0, 2}
    taken = Counter(state.order(CONFIG, 120))
    assert (taken[0], taken[2]) == (53, 53)
    assert taken[1] == 14


@pytest.mark.parametrize(
    ("grouping", "taken"),
    [
        ("round-robin", {0: 40, 1: 40, 2: 40}),
        ("load-aware", {0: 53, 1: 14, 2: 53}),
        ("least-work", {0: 60, 1: 0, 2: 60}),
    ],
)
def test_a_batch_goes_as_the_stages_grouping_says(grouping: str, taken: dict[int, int]) -> None:
    """Of three replicas one has 40 rows waiting, and takes twice as long for a row."""
    state = PoolState.fresh(CONFIG)
    state.grouping = grouping
    state.pool = ReplicaPool((True, True, True, False))
    state.backlog = {1: [["f", 0, 40]]}
    state.event = ServiceTimeEstimate(0.01)
    state.speeds = {j: ServiceTimeEstimate(s) for j, s in enumerate((0.01, 0.02, 0.01))}
    order = Counter(state.order(CONFIG, 120))
    assert {lane: order[lane] for lane in range(3)} == taken


def test_a_long_batch_repeats_an_order_that_stands_for_it() -> None:
    state = PoolState.fresh(CONFIG)
    state.event = ServiceTimeEstimate(0.0001)
    state.backlog = {0: [["f", 0, 2000]]}
    order = state.order(CONFIG, 6000)
    assert len(order) == 512
    assert Counter(order)[0] / 512 == pytest.approx(2 / 6, abs=0.02)


@pytest.mark.parametrize("replicas", [3, 8, 32])
@pytest.mark.parametrize("rows_each", [1, 5, 16])
def test_rows_of_many_small_partitions_go_to_all_replicas(rows_each: int, replicas: int) -> None:
    state = PoolState.fresh(PoolConfig(least=1, most=32, start=replicas, interval_s=1.0))
    order = state.order(CONFIG, 64 * rows_each)
    step = stride(len(order), replicas)
    numbers = [part * step + row for part in range(64) for row in range(rows_each)]
    taken = Counter(order[number % len(order)] for number in numbers)
    assert len(taken) == replicas
    assert max(taken.values()) <= 2 * min(taken.values())


def test_what_a_row_takes_each_replica_is_measured_apart() -> None:
    state = PoolState.fresh(CONFIG)
    slow, quick = report(0, arrived=10), report(1, arrived=10)
    for _ in range(2):
        state.apply(
            [dataclasses.replace(slow, rows_s=1.0), dataclasses.replace(quick, rows_s=0.5)], [0, 1]
        )
    assert {j: speed.event_s for j, speed in state.speeds.items()} == {0: 0.1, 1: 0.05}


def test_a_stage_may_have_a_grouping_of_its_own() -> None:
    chosen = Groupings.parse("shuffle, map-1: Least-Work")
    assert [chosen.of(stage) for stage in ("map-0", "map-1")] == ["shuffle", "least-work"]
    assert Groupings.parse("map-0: shuffle").of("map-1") == "load-aware"


def test_a_stage_that_no_query_has_is_refused_with_the_nearest() -> None:
    with pytest.raises(ConfigError, match=r'stage "mop-1", .*; did you mean "map-1"'):
        Groupings.parse("shuffle, mop-1: least-work").check(["map-0", "map-1"])


def test_a_pool_comes_back_from_its_manifest() -> None:
    state = PoolState.fresh(CONFIG)
    state.apply([report(1, arrived=10, waiting=6)], [0, 1])
    back = PoolState.recovered(CONFIG, state.facts())
    assert (back.active, back.backlog) == (state.active, state.backlog)
    smaller = PoolState.recovered(PoolConfig(least=1, most=1, start=1), state.facts())
    assert (len(smaller.active), smaller.lanes) == (1, [1])


def test_a_smaller_pool_keeps_as_many_replicas_active_as_it_can() -> None:
    facts = {"active": [4, 5, 6], "backlog": {}}
    assert PoolState.recovered(CONFIG, facts).active == [0, 1, 2]


def test_rows_that_wait_in_a_damaged_file_are_not_served(tmp_path: Path) -> None:
    checkpoint = Checkpoint(str(tmp_path))
    checkpoint.open({})
    kept = _kept(checkpoint, "backlog", [rows(0, 3)], inline_bytes=0)
    assert kept is not None
    segments, sums = [[kept.name, 1, 2]], {str(kept.name): kept.crc32}
    assert values(_backlog(checkpoint, segments, sums)) == [1, 2]
    file = next(path for path in tmp_path.rglob("*") if path.name == kept.name)
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 1
    file.chmod(0o600)
    file.write_bytes(bytes(data))
    with pytest.raises(CheckpointError, match="checksum does not match"):
        _backlog(checkpoint, segments, sums)


def test_a_restart_forgets_what_waits() -> None:
    state = PoolState.fresh(CONFIG)
    state.apply([report(1, arrived=10, waiting=6)], [0, 1])
    assert (state.forget(), state.queued()) == (6, [0, 0, 0, 0])


def test_an_interval_says_what_was_received_served_and_waits_and_begins_anew() -> None:
    state = PoolState.fresh(CONFIG)
    assert state.interval(CONFIG, {}) is None
    state.apply([report(1, arrived=10, waiting=5)], [0, 1])
    seen = state.interval(CONFIG, {})
    assert seen is not None
    assert (seen.from_source, seen.processed, seen.queued) == (10.0, 5.0, 5.0)
    assert (seen.event_s, seen.active, seen.pool) == (0.1, 2, 4)
    again = state.interval(CONFIG, {0: "map-0"})
    assert again is not None
    assert (again.received, again.processed) == ({"map-0": 0.0}, 0.0)


def test_of_two_stages_that_one_reads_each_has_its_own_share() -> None:
    state = PoolState.fresh(CONFIG)
    state.apply([dataclasses.replace(report(0, arrived=10), origins={0: 3, 1: 7})], [0, 1])
    seen = state.interval(CONFIG, {0: "map-0", 1: "udf-1"})
    assert seen is not None
    assert (seen.received, seen.from_source) == ({"map-0": 3.0, "udf-1": 7.0}, 0.0)


def test_what_a_stage_puts_out_is_as_old_as_what_it_was_given() -> None:
    given = pa.record_batch({"v": [1, 2], ARRIVED: pa.array([5.0, 8.0])})
    feed = Feed([], [given], None, None, 9.0)
    rows_out = pa.record_batch({"w": [1, 2]})
    next(feed)
    assert feed.dated(rows_out).column(ARRIVED).to_pylist() == [5.0, 8.0]
    assert feed.dated(rows_out.slice(1)).column(ARRIVED).to_pylist() == [8.0]


def test_of_rows_that_take_long_a_function_is_given_few_at_once() -> None:
    feed = Feed([], [rows(0, 200)], None, 0.1, 0.0)
    sizes = []
    for batch in feed:
        sizes.append(batch.num_rows)
        time.sleep(0.002 * batch.num_rows)
    assert sizes[0] == 16
    assert 1 <= max(sizes[1:]) <= 5
    assert sum(b.num_rows for b in feed.finish()) == 200 - sum(sizes) > 0


def manifest(step: int) -> Manifest:
    return Manifest(
        job="j",
        step=step,
        spark_batch=step,
        epoch=0,
        assignments={},
        watermarks={},
        heads={},
        sections={},
        files=(),
        engine={},
        previous=None,
    )


def test_a_journal_says_how_many_replicas_there_were_and_why(tmp_path: Path) -> None:
    """Two replicas at the start, three decided after a batch, and in force in the next one."""
    state = PoolState.fresh(CONFIG)
    recorder = PoolRecorder(tmp_path / "journal.jsonl", "psps(naive)")
    recorder.started("j", "tweets", {"map-0": state}, None, {})

    def committed(step: int, now_s: float) -> None:
        reports = [report(0, arrived=10), report(1, arrived=10, waiting=4)]
        state.apply(reports, [0, 1])
        outcome = Outcome(manifest(step), reports, {"slots": 5.0}, attempts=1, emitted=16)
        recorder.batch(outcome, {"map-0": state}, [0, 1], now_s)

    committed(0, 1.0)
    seen = state.interval(CONFIG, {})
    assert seen is not None
    decision = ReplicaDecision({"map-0": 3}, reason="30 events expected: map-0 2 -> 3 for 30.")
    recorder.decided(1.0, Interval(1.0, 20.0, {"map-0": seen}), decision)
    state.resize(3)
    recorder.resized(1, "map-0", 2, 3, "psps(naive)", decision.reason)
    committed(1, 1.5)
    committed(2, 2.0)
    recorder.stop("stopped", None)

    run = Run.read(recorder.path)
    assert [row.slots for row in run.rows] == [2, 3, 3]
    assert (run.arrived, run.served, run.emitted) == (60, 48, 48)
    assert [stats.backlog for stats in run.recent[0].slot_stats] == [0, 4]
    assert [event_text(event) for event in run.events] == [
        "started with 2 slots",
        "slots 2 → 3 by psps(naive): 30 events expected: map-0 2 -> 3 for 30; from batch 1",
        "ended: stopped",
    ]
    told = why(read(recorder.path), None)
    assert told["reason"] == decision.reason
    assert [(a["slots"], a["took_ms"]) for a in told["applied"]] == [(3, 500.0)]
    assert "  wanted    map-0: rescale to 3 slots" in why_lines(told)
    assert "map-0: 2 slots, latency - ms (bound -, floor 0" in why_lines(told)[2]


def test_as_printed_an_interval_begins_with_what_was_processed_in_the_last_one() -> None:
    config = PoolConfig(3, 3, 3, interval_s=10.0, replica_rate=10.0)  # a row adds 0.01
    state = PoolState.fresh(config)
    state.grouping = "as-printed"
    state.interval(config, {})
    for lane, served in enumerate((50, 20, 0)):
        state.apply([dataclasses.replace(report(lane), arrived=served, served=served)], [0, 1, 2])
    state.interval(config, {})
    # 0.5, 0.2 and 0: the third is given 20, then both up to 0.35
    assert Counter(state.order(config, 50)) == {1: 15, 2: 35}
    # what was given is added; nothing waits, but that does not count
    state.apply([dataclasses.replace(report(1), arrived=15, served=15)], [0, 1, 2])
    state.apply([dataclasses.replace(report(2), arrived=35, served=35)], [0, 1, 2])
    assert Counter(state.order(config, 30)) == {1: 15, 2: 15}
    # the next interval begins with 0, 0.15 and 0.35: the first two are filled up to 0.325
    state.interval(config, {})
    found = Counter(state.order(config, 50))
    assert abs(found[0] - 32.5) < 1.0
    assert abs(found[1] - 17.5) < 1.0
    assert found[2] == 0
