"""The table of policies over loads: what a row has, and what is refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from headgate.core.errors import ConfigError
from headgate.whatif.oracle import Constants
from headgate.whatif.score import judged
from headgate_lab.experiments.loads import OPERATOR, LoadRuns, measure, rows_of, run
from headgate_lab.workloads.loads import split, traces
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
