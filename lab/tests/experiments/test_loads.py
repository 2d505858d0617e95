"""The table of policies over loads: what a row has, and what is refused."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from headgate.core.errors import ConfigError
from headgate.whatif.oracle import Constants
from headgate_lab.experiments import constants
from headgate_lab.experiments.loads import OPERATOR, LoadRuns, measure, rows_of, run
from headgate_lab.sim.score import judged
from headgate_lab.workloads.loads import generated, split, traces
from headgate_lab.workloads.tails import tailed


@pytest.fixture(scope="module")
def rows(tmp_path_factory: pytest.TempPathFactory) -> tuple[list[dict[str, object]], Path]:
    """One calm load under a constant and a policy that moves, and where its oracle is kept."""
    cache = tmp_path_factory.mktemp("cache")
    return rows_of(LoadRuns(0, ("static(8)", "threshold"), cache=cache)), cache


def test_a_constant_has_the_slots_that_it_says_and_changes_nothing(
    rows: tuple[list[dict[str, object]], Path],
) -> None:
    static = rows[0][0]
    assert static["slots"] == 8.0
    assert static["changes_per_h"] == static["lost_slot_s"] == 0.0
    assert static["oracle"] < static["constant"] <= 8  # type: ignore[operator]
    assert static["to_oracle"] == pytest.approx(8.0 / static["oracle"], rel=1e-3)  # type: ignore[operator]


def test_a_kept_oracle_is_read_again_and_changes_nothing(
    rows: tuple[list[dict[str, object]], Path],
) -> None:
    found, cache = rows
    assert [path.name for path in cache.iterdir()] == ["poisson-000.json"]
    assert rows_of(LoadRuns(0, ("static(8)",), cache=cache)) == found[:1]


def test_no_load_that_is_kept_aside_is_measured_while_building(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    seen: list[int] = []

    def run_all(_: object, works: list[LoadRuns], __: object) -> list[list[object]]:
        seen.extend(work.number for work in works)
        return [[] for _ in works]

    monkeypatch.setattr("headgate_lab.experiments.loads.run_all", run_all)
    measure(["static(8)"])
    assert set(seen) == set(split()[0])
    assert not set(seen) & set(split()[1])


def test_a_part_that_is_none_is_refused() -> None:
    with pytest.raises(ConfigError, match='unknown part "all"; use building, aside, traces'):
        measure(["static(8)"], "all")
    with pytest.raises(ConfigError, match="name their directory with --data"):
        measure(["static(8)"], "traces")


def test_a_missing_trace_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="web_logs_1995"):
        traces(tmp_path)


def test_where_costs_differ_much_unified_takes_no_more_than_the_best_constant() -> None:
    """It aimed at 99.6 % of windows whatever the SLO wanted: 26 slots, where 12 keep 99 %."""
    load = tailed(4).load
    result = run(load, "unified")
    slots = result.operators[OPERATOR].slots[600:].mean()
    assert slots <= 1.15 * Constants(load).best(judged(result, OPERATOR, load).mean).slots


def test_an_slo_that_wants_a_smaller_share_of_windows_takes_fewer_slots() -> None:
    load = tailed(4).load
    slots = [run(load, "unified", success=share).operators[OPERATOR].slots[600:].mean()
             for share in (0.99, 0.9)]  # fmt: skip
    assert slots[1] < 0.9 * slots[0]


def test_a_leap_of_the_load_does_not_make_batches_longer_and_longer() -> None:
    """Half of the windows were late after a leap: each batch served what came during a longer one."""
    load = replace(tailed(13).load, bound_s=10.0)
    row = constants.row_of(load, run(load, "unified", batches=True))
    assert row["success"] > 0.93
    assert row["slots"] < 16.0


def test_the_best_constant_is_the_fewest_slots_that_keep_the_slo() -> None:
    load, best = constants.best_constant(generated(0).load, batches=False)
    assert load.bound_s == 1.0
    assert best["success"] >= 0.99
    fewer = run(load, f"static({int(best['slots']) - 1})")
    assert constants.row_of(load, fewer)["success"] < 0.99


def test_a_policy_is_worse_that_misses_what_a_constant_keeps_or_has_more_slots() -> None:
    best = {"success": 0.992, "slots": 10.0}
    assert constants.verdict({"success": 0.9895, "slots": 10.4}, best, 0.001, 0.05)
    assert not constants.verdict({"success": 0.988, "slots": 5.0}, best, 0.001, 0.05)
    assert not constants.verdict({"success": 1.0, "slots": 10.6}, best, 0.001, 0.05)
    # no constant keeps it
    assert constants.verdict({"success": 0.9, "slots": 10.0}, best | {"success": 0.9}, 0.001, 0.05)


def test_loads_with_tails_are_compared_with_constants(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[constants.Comparison] = []

    def run_all(
        _: object, works: list[constants.Comparison], __: object
    ) -> list[list[dict[str, object]]]:
        seen.extend(works)
        row = {"policy": "unified", "success": 0.995, "records_in_time": 1.0, "slots": 9.0}
        more = {"constant_slots": 10.0, "no_worse": True, "hardly_worse": True}
        return [[row | more] for _ in works]

    monkeypatch.setattr("headgate_lab.experiments.constants.run_all", run_all)
    found = constants.measure(["unified"], "tails-aside", batches=True)
    assert [work.number for work in seen] == list(range(20, 40))
    assert found["rows"][0]["no_worse"] == found["rows"][0]["at_99"] == 20
    with pytest.raises(ConfigError, match="no comparison with constants alone"):
        constants.measure(["unified"], "aside")
    with pytest.raises(ConfigError, match="name their directory with --data"):
        constants.measure(["unified"], "traces")


def test_the_second_half_is_judged_beside_the_constant_of_the_first(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Of 4 to 24 slots 6 keep the first half, and the second needs 8; the policy has 7 there."""
    needs = {"first": 6, "second": 8}

    def half_of(slots: int, begin_s: float, _: float) -> dict[str, float]:
        half = "first" if begin_s == load.from_s else "second"
        return {"success": 1.0 if slots >= needs[half] else 0.9, "slots": float(slots)}

    load = tailed(20).load
    monkeypatch.setattr(constants, "bounded", lambda load, *, batches: (load, {}))
    monkeypatch.setattr(
        constants,
        "run",
        lambda _, text, *, batches: int(text[7:-1]) if text.startswith("static") else 7,
    )
    monkeypatch.setattr(constants, "half_of", half_of)
    ours, firsts = constants.halves_of(constants.Comparison(20, ("unified",), batches=True))
    assert (ours["slots"], ours["constant_slots"], ours["no_worse"]) == (7.0, 8.0, False)
    assert (firsts["slots"], firsts["success"], firsts["no_worse"]) == (6.0, 0.9, False)


def test_both_halves_of_a_load_are_the_whole_of_it() -> None:
    load = generated(0).load
    result = run(load, "static(5)")
    whole = constants.half_of(result, load.from_s, load.duration_s)
    assert whole == {"success": constants.row_of(load, result)["success"], "slots": 5.0}
    middle_s = (load.from_s + load.duration_s) / 2.0
    first = constants.half_of(result, load.from_s, middle_s)["success"]
    second = constants.half_of(result, middle_s, load.duration_s)["success"]
    assert (first + second) / 2.0 == pytest.approx(whole["success"], abs=0.002)
