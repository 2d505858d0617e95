"""STRETCH's figures, tiny: what they promise, and the paper's shape where that is cheap."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from headgate.core.errors import ConfigError
from headgate_lab.experiments import registry
from headgate_lab.experiments.stretch import (
    fig06,
    fig07,
    fig08,
    fig09,
    fig10,
    fig11,
    fig13,
    tuple_buffer,
)
from headgate_lab.experiments.stretch.fig08 import Compared
from headgate_lab.experiments.stretch.hedge import hedges, hedges_as_printed, share_of_pairs, trades
from headgate_lab.experiments.stretch.live import LiveJoin
from headgate_lab.experiments.stretch.words import Count, add_counts, groups_of
from headgate_lab.tuple_buffer.measure import Load
from headgate_lab.workloads.tweets import keys


@pytest.fixture(scope="module")
def figure10() -> dict:
    # 9 -> 3 and 70 -> 30 lie on an edge of the rule.
    starts = {"provisioning": [1, 5, 18], "decommissioning": [5, 9, 70]}
    return fig10.measure(starts, before_s=8.0, after_s=12.0, window_s=4.0)


@pytest.mark.jit
def test_figure_10_gives_table_4_in_one_step_where_load_is_the_rate(figure10: dict) -> None:
    rows = [r for r in figure10["rows"] if r["cost"] == "constant" and r["policy"] == "threshold"]
    assert len(rows) == 6
    assert [(r["action"], r["start"], r["slots"]) for r in rows] == [
        ("provisioning", 1, 2),
        ("provisioning", 5, 9),
        ("provisioning", 18, 31),
        ("decommissioning", 5, 2),
        ("decommissioning", 9, 3),
        ("decommissioning", 70, 30),
    ]
    assert all(r["slots"] == r["paper"] == r["slots_at_end"] for r in rows)
    assert all(r["reconfigurations"] == 1 for r in rows)


@pytest.mark.jit
def test_figure_10_takes_several_steps_where_the_window_has_to_fill(figure10: dict) -> None:
    rows = {r["start"]: r for r in figure10["rows"] if r["cost"] == "window"}
    assert rows[18]["slots"] < rows[18]["slots_at_end"]


@pytest.mark.jit
def test_in_figure_10_a_fixed_number_of_slots_falls_behind(figure10: dict) -> None:
    rows = {r["policy"]: r for r in figure10["rows"] if (r["start"], r["cost"]) == (18, "constant")}
    assert rows["ScaleJoin"]["latency_ms_after"] > 100 * rows["threshold"]["latency_ms_after"]
    assert rows["ScaleJoin"]["reconfigurations"] == 0


@pytest.mark.jit
def test_figure_10_is_plain_json(figure10: dict) -> None:
    assert json.loads(json.dumps(figure10, allow_nan=False))["mode"] == "simulated, continuous"


def test_phases_are_as_long_and_as_fast_as_the_paper_says() -> None:
    for seed in range(1, 6):
        starts_s, rates = np.array(fig11.phases(seed).steps).T
        assert ((np.diff(starts_s) >= 100) & (np.diff(starts_s) <= 300)).all()
        assert ((rates >= 500) & (rates <= 8000)).all()


@pytest.mark.jit
def test_in_figure_11_slots_follow_the_filling_window_and_latency_recovers() -> None:
    found = fig11.measure((4,), length_s=150.0)
    (run,) = found["runs"]
    assert run["recover_s_longest"] <= 10
    assert run["reconfigurations"] > 3
    first = found["rows"][0]
    assert first["slots_first"] < first["slots_after_10_s"] < first["slots_last"]


def test_figure_12_is_the_largest_rise_and_saves_slots() -> None:
    line = {
        "time_s": np.arange(1.0, 200.0),
        "slots": np.minimum(np.maximum(np.arange(1.0, 200.0) - 98.0, 2.0), 20.0),
    }
    rows = [
        {"at_s": 0.0, "rate_per_s": 500, "slots_last": 2.0},
        {"at_s": 100.0, "rate_per_s": 4000, "slots_last": 20.0},
    ]
    zoom = fig11._zoom(line, rows)
    assert zoom["at_s"] == 100.0
    assert 0 < zoom["slot_seconds"] < zoom["slot_seconds_at_once"] == 1200
    assert fig11._zoom(line, rows[:1]) == {}


@pytest.mark.jit
def test_figure_13_has_the_paper_s_peak_and_few_slots() -> None:
    found = fig13.measure(0.05)
    whole, near = found["rows"]
    assert whole["rate_per_s_peak"] == pytest.approx(fig13.PEAK_PER_S, rel=0.02)
    assert whole["slots_mean"] <= near["slots_most"]
    assert whole["slots_median"] == 1.0
    assert near["slots_most"] <= 11.0
    assert whole["latency_ms_mean"] < 21.0  # the paper's around the peak
    assert 0 < found["matches"]["bounded"] < found["matches"]["as_printed"] < 1


def test_a_hedge_is_another_company_as_far_in_the_other_direction() -> None:
    left = (np.array([1, 1, 1, 1]), np.array([0.1, 0.1, 0.1, 0.0]))
    right = (np.array([2, 2, 1, 2]), np.array([-0.1, 0.1, -0.1, 0.1]))
    assert [hedges(left, i, right, i) for i in range(4)] == [True, False, False, False]
    # The printed form has no upper bound: it accepts the same direction as well.
    assert [hedges_as_printed(left, i, right, i) for i in range(4)] == [True, True, False, False]


def test_shares_of_pairs_are_those_of_a_nested_loop() -> None:
    company, distance = trades(3, 60)
    pairs = [
        (i, j) for i in range(60) for j in range(60) if company[i] != company[j] and distance[i]
    ]
    ratio = [distance[j] / distance[i] for i, j in pairs]
    expected = sum(-1.05 <= r <= -0.95 for r in ratio) / 3600, sum(r >= -1.05 for r in ratio) / 3600
    assert tuple(share_of_pairs(3, 60)[name] for name in ("bounded", "as_printed")) == expected


def test_pairs_of_words_are_a_bag_and_end_with_the_tweet() -> None:
    words = np.array([[3, 1, 3, -1], [2, -1, 5, 5]], np.int32)
    assert keys(words, 0).tolist() == [3, 1, 3, 2]
    assert keys(words, 1).tolist() == [30_001, 10_003]
    assert keys(words, 9).tolist() == [30_001, 30_003, 10_003]


def test_counts_are_those_of_the_keys_whose_groups_are_owned() -> None:
    keys = np.array([5, 9, 5, 0, 13, 5])
    is_owned = np.ones(128, dtype=bool)
    is_owned[groups_of(np.array([9]), 128)] = False
    table = np.zeros((8, 2), np.int64)
    assert add_counts(keys, is_owned, table) == 5
    held = {int(key) - 1: int(count) for key, count in table if key}
    assert held == {5: 3, 0: 1, 13: 1}


def test_a_full_table_counts_fewer_than_there_are() -> None:
    keys = np.arange(6)
    assert add_counts(keys, np.ones(8, dtype=bool), np.zeros((4, 2), np.int64)) == 4


def test_every_key_has_one_owner_among_the_slots() -> None:
    groups = groups_of(np.arange(10_000) * 9973, 128)
    assert set(groups.tolist()) == set(range(128))


@pytest.mark.parametrize("bad", [{"readers": "1,x"}, {"readers": "0"}])
def test_bench_tuple_buffer_refuses_what_are_no_readers(bad: dict) -> None:
    with pytest.raises(ConfigError, match="are no numbers of processes"):
        tuple_buffer.run(**bad)


def test_bench_tuple_buffer_refuses_an_unknown_parameter_with_the_nearest() -> None:
    with pytest.raises(ConfigError, match='"reader"; did you mean "readers"'):
        tuple_buffer.run(reader=1)


def test_figures_shown_by_others_are_found() -> None:
    for number in (12, 16, 17, 18, 19):
        assert registry.load(f"stretch-{number}") is fig11


def test_figure_7_compares_one_buffer_that_all_read_with_a_buffer_each(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def buffer(folder: Path, readers: list[int], load: Load) -> list[SimpleNamespace]:
        per_s, delay = (3e6, 2.0) if load.shared else (2e6, 5.0)
        found = {"records_per_s": per_s, "latency_ms_p50": delay, "latency_ms_p99": 2 * delay}
        return [SimpleNamespace(**found) for _ in readers]

    monkeypatch.setattr(fig07, "measure_buffer", buffer)
    (row,) = fig07.measure((2,), records=10)["rows"]
    assert (row["shared_per_s"], row["copied_per_s"], row["ratio"]) == (3_000_000, 2_000_000, 1.5)
    assert (row["shared_ms_p50"], row["copied_ms_p50"]) == (2.0, 5.0)


@pytest.mark.jit
@pytest.mark.slow
def test_figure_7_measures_both_exchanges() -> None:
    (row,) = fig07.measure((1,), records=20_000)["rows"]
    assert row["shared_per_s"] > 0
    assert row["copied_per_s"] > 0


def test_figure_6_compares_what_is_shared_with_what_is_copied(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    per_s = {True: 3000.0, False: 2000.0}
    measured: list[tuple[bool, int, float]] = []

    def delay(count: Count, seconds: float) -> float:
        measured.append((count.shared, count.distance_max, count.rate_per_s))
        return 1.0 if count.shared else 9.0

    monkeypatch.setattr(fig06, "throughput", lambda count, seconds: per_s[count.shared])
    monkeypatch.setattr(fig06, "latency_ms", delay)
    (row,) = fig06.measure(("pairs, B = 3",), (2,), seconds=0.0)["rows"]
    assert (row["shared_per_s"], row["partitioned_per_s"], row["percent"]) == (3000, 2000, 50)
    assert (row["shared_ms_p50"], row["partitioned_ms_p50"]) == (1.0, 9.0)
    assert measured == [(True, 3, 1000.0), (False, 3, 1000.0)]


@pytest.mark.jit
@pytest.mark.slow
def test_figure_6_measures_both_exchanges() -> None:
    (row,) = fig06.measure(("words",), (1,), seconds=0.2)["rows"]
    assert min(row["shared_per_s"], row["partitioned_per_s"]) > 0
    assert row["shared_ms_p50"] is not None


def test_figure_8_grows_by_slots_on_as_many_cores_and_by_their_share_of_the_work(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def compared(join: LiveJoin, seconds: float) -> Compared:
        # Two cores: the third and fourth slot add nothing to what is done in a second.
        per_s = 3e9 * min(join.slots, 2) if join.keys > 4 else 2e9
        return Compared(per_s, 3e9, 1.0 / join.slots)

    monkeypatch.setattr(fig08, "compared", compared)
    monkeypatch.setattr(fig08, "single_threaded", lambda join, seconds: Compared(4e9, 4e9, 1.0))
    monkeypatch.setattr(fig08, "latency", lambda join, seconds: {})
    monkeypatch.setattr(fig08.os, "cpu_count", lambda: 2)
    found = fig08.measure((1, 2, 4), seconds=0.0, window_s=2.0)
    assert found["cores"] == 2
    assert [(row["kind"], row["slots"]) for row in found["rows"]] == [
        ("1T", 1),
        *((kind, slots) for slots in (1, 2, 4) for kind in ("O+", "ad hoc")),
    ]
    growth = [
        (g["slots"], g["on_these_cores"], g["measured"], g["by_processor_time"])
        for g in found["growth"]
    ]
    assert growth == [(1, 1, 1.0, 1.0), (2, 2, 2.0, 2.0), (4, 2, 2.0, 4.0)]


@pytest.mark.jit
@pytest.mark.slow
def test_figure_8_has_two_slots_share_the_work_of_one_at_one_threads_cost_per_comparison() -> None:
    found = fig08.measure((1, 2), seconds=0.5, window_s=30.0)
    rows = {(row["kind"], row["slots"]): row for row in found["rows"]}
    # By processor time, since whoever else works on these cores takes comparisons per second away.
    alone, one, two = rows["1T", 1], rows["O+", 1], rows["O+", 2]
    assert one["comparisons_per_cpu_s"] > 0.6 * alone["comparisons_per_cpu_s"]
    assert two["comparisons_per_cpu_s"] > 0.6 * one["comparisons_per_cpu_s"]
    assert two["most_share"] < 0.6
    by_slots = {growth["slots"]: growth for growth in found["growth"]}
    assert by_slots[2]["by_processor_time"] > 1.4


@pytest.mark.jit
@pytest.mark.slow
def test_figure_9_copies_no_state() -> None:
    found = fig09.measure((1,), (50_000,), repeats=1)
    assert [(row["action"], row["slots"]) for row in found["rows"]] == [("provisioning", 2)]
    (row,) = found["bytes"]
    assert row["moved_groups"] > 0
    assert row["changed_bytes"] < row["moved_state_bytes"] / 10
