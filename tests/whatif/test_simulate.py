from __future__ import annotations

import gzip
import importlib.util
import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest
from typer.testing import CliRunner

from headgate.cli import app
from headgate.core.errors import ConfigError
from headgate.core.slo import parse_slo
from headgate.whatif.advice import sentence
from headgate.whatif.model import MicroBatch
from headgate.whatif.simulate import _POINTS, WhatIf, _thinned, engine, simulate
from headgate.whatif.simulate import mode as mode_of
from headgate.whatif.trace_file import TraceColumns, read_log
from headgate.workloads.traces import Trace, resolution_of

pytestmark = pytest.mark.usefixtures("one_process")

SLO = "mean < 1 s over 1 s"
EPOCH_S = 1_700_000_000


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    """Ten seconds of 200 records/s over 20 keys, with a burst of twice that in the middle."""
    rows = [
        f"{EPOCH_S + second},k{key},{20 if second in (4, 5) else 10}"
        for second in range(10)
        for key in range(20)
    ]
    path = tmp_path / "trace.csv"
    path.write_text("\n".join(["time,key,count", *rows]), encoding="utf-8")
    return path


def call(*arguments: str | Path) -> tuple[int, str, str]:
    result = CliRunner().invoke(app, [str(argument) for argument in arguments])
    return result.exit_code, result.stdout, result.stderr


def what_if(slo: str = SLO, **changes: Any) -> WhatIf:
    counts = np.full((5, 8), 20, dtype=np.int32)
    return WhatIf(Trace(counts, 1.0), parse_slo(slo), **{"service_rate_per_s": 100.0, **changes})


@pytest.mark.parametrize("hot", [0, 2, 25])
def test_the_hottest_key_group_is_found_wherever_its_ten_windows_lie(hot: int) -> None:
    counts = np.full((36, 4), 10, dtype=np.int32)
    counts[hot : hot + 10, 1] = 60
    asked = WhatIf(Trace(counts, 1.0), parse_slo(SLO), service_rate_per_s=50.0)
    assert asked._hottest_per_s() == 60.0


def errors(arguments: Sequence[str | Path]) -> str:
    code, out, _ = call("simulate", *arguments, "--json")
    assert code == 2
    return str(json.loads(out)["error"]["message"])


def test_policies_stand_side_by_side_with_success_slots_and_changes(trace: Path) -> None:
    code, out, _ = call(
        *("simulate", trace, "--slo", SLO, "--service-rate", "50"),
        *("--policy", "streamswitch(0.2),static(n=9),ds2", "--json"),
    )
    assert code == 0
    found = json.loads(out)
    assert [row["policy"] for row in found["rows"]] == ["streamswitch(0.2)", "static(9)", "ds2"]
    static = found["rows"][1]
    assert static["slots_mean"] == 9.0
    assert static["rescale"] == 0
    assert found["records"] == 2400
    assert found["duration_s"] == 10.0


def test_the_text_shows_the_same_as_a_table(trace: Path) -> None:
    code, out, _ = call(
        "simulate", trace, "--slo", SLO, "--service-rate", "50", "--policy", "static(9)"
    )
    assert code == 0
    head, row, advice = out.splitlines()[-3:]
    assert head.split()[:3] == ["policy", "success", "meets"]
    assert row.split()[0] == "static(9)"
    assert advice.startswith("Take static(9)")


def test_a_trace_begins_with_its_earliest_time_whatever_the_origin(trace: Path) -> None:
    assert read_log(trace, 4, seed=1)[0].duration_s == 10.0


def test_without_a_column_of_counts_a_row_is_a_record(tmp_path: Path) -> None:
    path = tmp_path / "rows.csv"
    path.write_text("time,key\n0,a\n0,b\n1,a\n", encoding="utf-8")
    assert read_log(path, 4, seed=1)[0].total == 3


def test_a_faster_trace_is_shorter(trace: Path) -> None:
    assert read_log(trace, 4, TraceColumns(speed=2.0), seed=1)[0].duration_s == 5.0


def written(path: Path, text: str) -> Path:
    path.write_text(text, encoding="utf-8")
    return path


def test_a_count_per_five_minutes_is_spread_over_them(tmp_path: Path) -> None:
    rows = "".join(f"{300 * i},a,600\n" for i in range(4))
    path = written(tmp_path / "counts.csv", "time,key,count\n" + rows)
    found, *_ = read_log(path, 4, seed=1)
    assert (found.slice_s, found.duration_s) == (300.0, 1200.0)
    assert read_log(path, 4, TraceColumns(slice_s=60.0), seed=1)[0].slice_s == 60.0
    # 2 records/s and no more: one slot of 5/s keeps up with them.
    row = simulate(WhatIf(found, parse_slo(SLO), 5.0), ["static(1)"])["rows"][0]
    assert row["latency_mean_s"] < 1.0


def test_times_may_be_dates(tmp_path: Path) -> None:
    text = "time,key\n2026-01-31 12:00:00,a\n2026-01-31 12:00:07,b\n"
    assert read_log(written(tmp_path / "dates.csv", text), 4, seed=1)[0].duration_s == 8.0


def test_times_below_a_second_are_not_spread_over_it(tmp_path: Path) -> None:
    # forty records at once in each second: a slot of 50/s has them wait 0.4 s in the mean
    rows = "".join(f"{1_700_000_000 + s}.25,k\n" * 40 for s in range(20))
    path = written(tmp_path / "bursts.csv", "time,key\n" + rows)
    _, records, notes = read_log(path, 4, seed=1)
    assert records is not None
    assert records.costs is None
    assert "records come when the log says" in notes
    out = json.loads(
        call(
            *("simulate", path, "--slo", "mean < 300 ms over 1 s", "--service-rate", "50"),
            *("--policy", "static(1)", "--json"),
        )[1]
    )
    assert out["rows"][0]["success"] < 0.2
    assert out["rows"][0]["latency_mean_s"] == pytest.approx(0.41, abs=0.05)
    assert out["read_as"] == "records come when the log says"
    spread = read_log(path, 4, TraceColumns(slice_s=1.0), seed=1)
    assert spread[1] is None
    assert spread[2] == ("records of 1 s are spread over it by chance",)


@pytest.mark.parametrize(
    ("times", "slice_s", "exact"),
    [
        ([0, 1, 2, 5], 1.0, False),
        ([0, 60, 180], 60.0, False),
        ([0.0, 0.5, 1.5], 0.5, False),
        ([0.1, 0.2, 0.7], 0.1, False),
        ([0.1, 0.2, 0.7351], 1.0, True),
        ([3.5], 1.0, False),
    ],
)
def test_counts_are_of_their_interval_unless_they_come_at_any_time(
    times: list[float], slice_s: float, exact: bool
) -> None:
    found = resolution_of(np.array(times), counted=True)
    assert (round(found[0], 6), found[1]) == (slice_s, exact)
    fractions = any(time % 1 for time in times)
    assert resolution_of(np.array(times), counted=False) == (1.0, fractions)


@pytest.mark.parametrize(("unit", "factor"), [("ms", 1e3), ("us", 1e6), ("ns", 1e9), ("s", 1)])
def test_times_since_1970_may_be_in_any_unit(tmp_path: Path, unit: str, factor: float) -> None:
    text = "".join(f"{int((1_790_000_000 + s) * factor)},a\n" for s in range(30))
    path = written(tmp_path / "epoch.csv", "time,key\n" + text)
    found, _, notes = read_log(path, 4, seed=1)
    assert (found.duration_s, found.total) == (30.0, 30)
    assert any("seconds" in note and unit != "s" for note in notes) == (unit != "s")
    told = TraceColumns(unit="s")
    if unit == "ms":
        assert read_log(path, 4, told, seed=1)[0].duration_s > 20_000


def test_a_unit_of_times_can_be_named(tmp_path: Path) -> None:
    path = written(tmp_path / "since.csv", "time,key\n0,a\n2500,b\n9000,a\n")
    assert read_log(path, 4, TraceColumns(unit="ms"), seed=1)[0].duration_s == 10.0
    assert 'unknown unit of times "sec"' in errors(
        [path, "--slo", SLO, "--service-rate", "5", "--time-unit", "sec"]
    )


def test_a_log_without_keys_is_spread_evenly(tmp_path: Path) -> None:
    path = written(tmp_path / "a.csv", "time\n" + "".join(f"{s}\n" * 4 for s in range(5)))
    found, _, notes = read_log(path, 4, seed=1)
    assert found.counts.sum(axis=0).tolist() == [5, 5, 5, 5]
    assert "no keys: records are spread evenly over the key groups" in notes
    counted = written(tmp_path / "b.csv", "time,count\n0,7\n1,0\n2,6\n")
    trace = read_log(counted, 4, seed=1)[0]
    assert trace.counts.sum(axis=1).tolist() == [7, 0, 6]
    assert sorted(trace.counts.sum(axis=0).tolist()) == [3, 3, 3, 4]
    assert 'has no column "key"' in errors(
        [path, "--slo", SLO, "--service-rate", "5", "--key-column", "key"]
    )


@pytest.mark.parametrize("mark", [";", "\t", "|"])
def test_columns_may_be_parted_by_other_marks(tmp_path: Path, mark: str) -> None:
    text = "time,key,count\n0,a,3\n1,b,4\n".replace(",", mark)
    assert read_log(written(tmp_path / "a.csv", text), 4, seed=1)[0].total == 7
    zipped = tmp_path / "b.csv.gz"
    zipped.write_bytes(gzip.compress(text.encode()))
    assert read_log(zipped, 4, seed=1)[0].total == 7


def test_the_advice_names_what_limits() -> None:
    even = np.full((20, 8), 25, dtype=np.int32)  # 200 records/s
    hot = even.copy()
    hot[:, 3] = 200

    def advice(counts: Any, policy: str, **changes: Any) -> str:
        given = {"service_rate_per_s": 100.0, **changes}
        it = WhatIf(Trace(counts, 1.0), parse_slo(SLO), **given)
        return str(simulate(it, [policy])["advice"])

    assert "one key group gets up to 200 records/s" in advice(hot, "static(8)")
    assert "give it more slots than 1 (--slots-max)" in advice(even, "static(1)", slots_max=1)
    assert "or static(2) and more: it took 1 of 8 slots" in advice(even, "static(1)")
    batches = {"mode": mode_of("micro-batch"), "engine": engine(parse_slo(SLO), 1)}
    assert "give it more cores than 1 (--cores)" in advice(even, "static(1)", **batches)


def test_an_oracle_that_keeps_key_groups_whole_stands_beside_the_one_that_may_divide_them() -> None:
    counts = np.zeros((40, 8), dtype=np.int32)
    counts[:, 3] = 150
    it = WhatIf(Trace(counts, 1.0), parse_slo(SLO), 100.0, oracle=True)
    found = simulate(it, ["static(2)"])
    assert found["oracle_slots"] <= 2.0
    assert found["whole_slots"] is None
    even = simulate(what_if(oracle=True), ["static(4)"])
    assert even["whole_slots"] >= even["oracle_slots"]


def test_records_may_cost_differently(tmp_path: Path) -> None:
    text = "time,key,cost\n" + "".join(f"{i},a,{9 if i == 5 else 1}\n" for i in range(10))
    path = written(tmp_path / "costs.csv", text)
    found, records, _ = read_log(path, 4, seed=1)
    assert records is not None
    assert records.costs is not None
    assert records.costs.mean() == pytest.approx(1.0)
    assert records.costs.max() == pytest.approx(9 / 1.8)
    alike = simulate(WhatIf(found, parse_slo(SLO), 2.0), ["static(1)"])["rows"][0]
    costly = simulate(WhatIf(found, parse_slo(SLO), 2.0, records=records), ["static(1)"])["rows"][0]
    assert costly["latency_p99_s"] > 2 * alike["latency_p99_s"]


def test_a_percentile_is_judged_over_all_key_groups() -> None:
    found = simulate(what_if("p50 < 100 ms over 1 s"), ["static(4)", "static(1)"])["rows"]
    assert found[0]["success"] > 0.9 > found[1]["success"]
    strict = simulate(what_if("max < 10 ms over 1 s"), ["static(4)"])["rows"][0]
    assert strict["success"] < 0.1


def test_micro_batches_have_the_cores_and_the_budget_that_they_are_given() -> None:
    slo = parse_slo(SLO)
    assert engine(slo, 3).cores == 3
    assert engine(slo).budget_s == pytest.approx(0.8)
    assert engine(slo, budget="200 ms").budget_s == pytest.approx(0.2)
    assert engine(slo, slot_rate=50.0).slot_rate_per_s == 50.0
    changes = {"mode": mode_of("micro-batch"), "service_rate_per_s": 30.0}
    rows = [
        simulate(what_if(**changes, engine=engine(slo, cores)), ["static(8)"])["rows"][0]
        for cores in (2, 8)
    ]
    assert rows[1]["success"] > rows[0]["success"] + 0.1
    assert simulate(what_if(**changes, engine=engine(slo, 7)), ["static(1)"])["cores"] == 7


def test_beside_the_oracle_and_the_best_constant() -> None:
    found = simulate(what_if(oracle=True), ["static(4)", "static(2)"])
    four = found["rows"][0]
    assert four["to_oracle"] == pytest.approx(4.0 / four["oracle_slots"], abs=0.001)
    assert four["constant_slots"] <= 4
    assert found["oracle_slots"] <= found["constant_slots"] <= 4
    known = {point["slots"]: point["success"] for point in found["constants"]}
    assert known[four["constant_slots"]] >= four["success"]


def test_one_sentence_says_which_policy_slots_and_slo() -> None:
    slo = parse_slo(SLO)
    rows = simulate(what_if(), ["static(4)", "static(3)"])["rows"]
    assert sentence(slo, rows).startswith('Take static(3) with up to 3 slots: it keeps "mean < 1 s')
    short = simulate(what_if(), ["static(1)"])
    assert short["advice"].startswith("No policy here keeps")
    assert "static(1) comes nearest" in short["advice"]
    assert 'it keeps "mean < ' in short["advice"]


def test_a_stall_counts_however_few_windows_have_completions() -> None:
    """The case of a job whose last records are never served: five slots, or six.

    Batches get longer and longer under a burst, and the last one does not end with the run. While it
    runs nothing is completed: leaving its windows out called five slots better than six.
    """
    counts = np.full((60, 8), 2, dtype=np.int32)
    counts[12:20] = 120
    trace = Trace(counts, 1.0)
    rows = simulate(
        WhatIf(
            trace,
            parse_slo(SLO),
            25.0,
            mode=mode_of("micro-batch"),
            engine=MicroBatch(cores=8),
        ),
        ["static(5)", "static(6)"],
    )["rows"]
    five, six = rows
    assert five["success"] < 0.35
    assert six["success"] >= five["success"]


def test_an_slo_is_met_by_each_key_group_and_records_are_counted_beside_windows() -> None:
    """One key group of 128 has most of the records, and is late: windows in time 99.3 %, records few."""
    counts = np.full((10, 128), 1, dtype=np.int32)
    counts[:, 17] = 400
    found = what_if(slots_max=128)
    hot = replace(found, trace=Trace(counts, 1.0))
    (row,) = simulate(hot, ["static(128)"])["rows"]
    assert row["success"] >= 0.99
    assert row["success_worst"] < 0.2
    assert row["records_in_time"] < 0.5
    assert not row["meets"]
    assert row["bound_kept_s"] is None
    assert "of the worst key group's windows" in sentence(hot.slo, [row])


def test_more_slots_than_the_load_needs_keep_the_slo_and_too_few_do_not() -> None:
    found = simulate(what_if(), ["static(4)", "static(1)"])
    enough, too_few = found["rows"]
    assert enough["meets"]
    assert not too_few["meets"]
    assert enough["success"] > too_few["success"]


def test_micro_batches_have_a_latency_that_continuous_slots_do_not_have() -> None:
    continuous = simulate(what_if(), ["static(4)"])["rows"][0]
    batched = simulate(what_if(mode=mode_of("micro-batch")), ["static(4)"])["rows"][0]
    assert batched["latency_mean_s"] > 2 * continuous["latency_mean_s"]


def test_a_policy_begins_with_what_the_mean_rate_needs_and_static_with_its_own() -> None:
    # 160 records/s over 0.8 x 100 of a slot.
    assert what_if().slots_at_start("streamswitch") == 2
    assert what_if().slots_at_start("static(5)") == 5
    assert what_if(slots_max=3).slots_at_start("static(5)") == 3


@pytest.mark.skipif(
    importlib.util.find_spec("matplotlib") is None,
    reason='matplotlib, the extra "plot", is not installed',
)
def test_a_picture_is_a_valid_svg(trace: Path, tmp_path: Path) -> None:
    target = tmp_path / "cost.svg"
    code, _, _ = call(
        *("simulate", trace, "--slo", SLO, "--service-rate", "50"),
        *("--policy", "static(9)", "--out", target),
    )
    assert code == 0
    assert ElementTree.parse(target).getroot().tag.endswith("svg")


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    message = errors([tmp_path / "none.csv", "--slo", SLO, "--service-rate", "50"])
    assert "none.csv" in message
    assert "there is no file" in message


def test_a_missing_column_is_named_with_the_nearest(trace: Path) -> None:
    arguments = [trace, "--slo", SLO, "--service-rate", "50", "--key-column", "keys"]
    assert 'no column "keys"; did you mean "key"?' in errors(arguments)


def test_an_unknown_policy_is_refused_before_anything_runs(trace: Path) -> None:
    arguments = [trace, "--slo", SLO, "--service-rate", "50", "--policy", "static(3),streamswich"]
    assert 'unknown policy "streamswich"; did you mean "streamswitch"?' in errors(arguments)


def test_an_slo_without_a_unit_is_refused(trace: Path) -> None:
    assert "has no unit" in errors([trace, "--slo", "mean < 1 over 1 s", "--service-rate", "50"])


def test_a_picture_that_is_no_svg_is_refused_before_anything_runs(trace: Path) -> None:
    arguments = [trace, "--slo", SLO, "--service-rate", "50", "--out", "cost.png"]
    assert 'end it with ".svg"' in errors(arguments)


@pytest.mark.parametrize(
    ("changes", "match"),
    [
        ({"slo": "juice >= 0.9 over 1 s"}, "simulate judges latency"),
        ({"service_rate_per_s": 0.0}, "service rate 0 is out of range"),
        ({"slots_max": 0}, "slots_max=0 is out of range"),
    ],
)
def test_what_cannot_be_simulated_is_refused(changes: dict[str, Any], match: str) -> None:
    with pytest.raises(ConfigError, match=match):
        what_if(**changes)


@pytest.mark.parametrize(
    ("changes", "match"),
    [
        ({"columns": TraceColumns(speed=0.0)}, "speed 0 is out of range"),
        ({"columns": TraceColumns(speed=1e-6), "key_groups": 64}, "raise the speed"),
        ({"key_groups": 0}, "key_groups=0"),
    ],
)
def test_a_trace_cannot_be_read_with_senseless_numbers(
    trace: Path, changes: dict[str, Any], match: str
) -> None:
    with pytest.raises(ConfigError, match=match):
        read_log(trace, **{"key_groups": 4, **changes}, seed=1)


def test_an_unknown_mode_is_refused_with_the_nearest() -> None:
    with pytest.raises(ConfigError, match='"microbatch"; did you mean "micro-batch"'):
        mode_of("microbatch")


def test_a_trace_shorter_than_a_window_is_refused_and_not_called_empty() -> None:
    """No window means no success; "nothing arrives" was what came out, or an array of 34 GB."""
    for window in ("10 s", "1000 h"):
        with pytest.raises(ConfigError, match=r"plays for 5 s, less than the window of"):
            what_if(f"mean < 1 s over {window}")


def test_in_batches_a_policy_takes_no_more_slots_than_there_are_cores() -> None:
    """Slots beyond the cores take turns and look slower, so that ever more of them were wanted."""
    counts = np.full((40, 64), 6, dtype=np.int32)
    given = WhatIf(
        Trace(counts, 1.0),
        parse_slo(SLO),
        160.0,
        mode=mode_of("micro-batch"),
        engine=engine(parse_slo(SLO), 4),
    )
    assert simulate(given, ["unified"])["rows"][0]["slots_most"] <= 4


def test_a_fixed_number_without_batches_is_not_recommended_for_batches() -> None:
    found = simulate(
        what_if("mean < 2 s over 1 s", mode=mode_of("micro-batch"), oracle=True), ["static(4)"]
    )
    assert "an oracle needs that has no batches" in found["advice"]
    assert "a fixed number" not in found["advice"]


def test_where_a_constant_is_clearly_cheaper_it_is_recommended() -> None:
    found = simulate(what_if(oracle=True), ["static(4)", "static(6)"])
    assert found["constant_slots"] == 2
    assert found["advice"].startswith("Take static(2): it keeps")


def test_an_oracle_needs_no_more_than_a_constant() -> None:
    counts = np.full((60, 128), 3, dtype=np.int32)
    given = WhatIf(Trace(counts, 1.0), parse_slo(SLO), 160.0, oracle=True)
    for row in simulate(given, ["static(3)", "static(4)"])["rows"]:
        assert row["oracle_slots"] <= row["constant_slots"]


def test_a_hot_key_group_that_is_missed_stands_in_the_sentence() -> None:
    slo = parse_slo(SLO)
    rows = [dict(simulate(what_if(), ["static(4)"])["rows"][0], success_worst=0.004)]
    assert "0.40% of the worst key group's" in sentence(slo, rows)


def test_what_a_batch_completes_after_the_run_is_in_no_latency() -> None:
    """The last batch of an overload ran on for minutes; its records were in p99 and in no mean."""
    counts = np.full((90, 8), 100, dtype=np.int32)
    given = WhatIf(
        Trace(counts, 1.0),
        parse_slo(SLO),
        50.0,
        mode=mode_of("micro-batch"),
        engine=MicroBatch(cores=1, budget_s=0.8),
    )
    assert simulate(given, ["static(1)"])["rows"][0]["latency_p99_s"] <= 90.0


def test_any_number_of_cores_is_taken() -> None:
    slo = parse_slo(SLO)
    given = what_if(mode=mode_of("micro-batch"), engine=engine(slo, 10**12))
    assert simulate(given, ["static(4)"])["rows"][0]["success"] is not None


def test_a_trace_that_would_not_fit_into_memory_is_refused() -> None:
    """Ticks are ten a second: a week of 128 key groups took 22 GB per policy."""
    trace = Trace(np.ones((100, 128), dtype=np.int32), 6000.0)
    with pytest.raises(
        ConfigError, match=r"plays for 600,000 s, too long to simulate 128 key groups"
    ):
        WhatIf(trace, parse_slo(SLO), 100.0)


def test_a_slot_is_limited_once() -> None:
    with pytest.raises(ConfigError, match=r"a budget of 800 ms and a slot rate of 50 both limit"):
        engine(parse_slo(SLO), budget="800 ms", slot_rate=50.0)
    alone = engine(parse_slo(SLO), slot_rate=50.0)
    assert engine(parse_slo(SLO), budget="none", slot_rate=50.0) == alone


def test_a_long_run_is_drawn_by_means_of_its_stretches_and_the_worst_latency() -> None:
    steps = np.arange(3 * _POINTS, dtype=float)
    late = np.where(steps % 3 == 1, 9.0, np.nan)
    series = {"time_s": steps, "arrivals_per_s": 2 * steps, "slots": steps * 0 + 4}
    run: Any = SimpleNamespace(timeline=lambda _: {**series, "latency_p99_s": late})
    found = _thinned(run)
    assert {len(values) for values in found.values()} == {_POINTS}
    assert found["time_s"][:3] == [1.0, 4.0, 7.0]
    assert found["arrivals_per_s"][:3] == [2.0, 8.0, 14.0]
    assert set(found["slots"]) == {4.0}
    assert set(found["latency_p99_s"]) == {9.0}
