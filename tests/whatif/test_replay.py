"""A recorded run: what arrived, what batches cost, and what the model makes of them."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from headgate.core.errors import ConfigError
from headgate.core.slo import parse_slo
from headgate.journal import JournalWriter
from headgate.journal.parts import GroupRecords, Latency, SloState
from headgate.journal.schema import Batch, Start
from headgate.loop.settings import OperatorSettings
from headgate.whatif import replay as replaying
from headgate.whatif.calibration import calibrated
from headgate.whatif.recording import Recorded
from headgate.whatif.replay import Conditions, replay

pytestmark = pytest.mark.usefixtures("one_process")

GROUPS = 8
PLAN_MS, COMMIT_MS, SLOT_MS, RECORD_MS = 80.0, 40.0, 15.0, 0.1
"""What the made-up engine takes for a batch, per slot and per record."""


def state(success: float) -> SloState:
    return SloState(
        state="steady",
        frozen=False,
        success=success,
        success_worst=success,
        worst_group=0,
        worst_operator="counts",
        windows=100,
        windows_empty=0,
        wanted=0.99,
        bound_ms=1000.0,
        floor_ms=150.0,
        loop_ms=0.5,
        cycles=1,
    )


def write(path: Path, *, batches: int = 200, operators: tuple[str, ...] = ("counts",)) -> Path:
    """Write the journal of an engine whose costs are known, with 2 to 6 slots."""
    writer = JournalWriter(path)
    parameters = {
        "slo": ["mean < 1 s over 1 s"],
        "policy": "static",
        "slots_max": 8,
        "budget_s": None,
        "slot_rate": None,
        "cores": 1,
    }
    writer.write(
        Start(job="j", name="q", key_groups=GROUPS, slots=2, parameters=parameters, at_ms=1)
    )
    end_ms = 1_000_000.0
    for step in range(batches):
        slots = 2 + step % 5
        served = 40 + 10 * (step % 3)
        work_ms = SLOT_MS * slots + RECORD_MS * served
        end_ms += PLAN_MS + work_ms + COMMIT_MS
        halves = [served // 2, served - served // 2]
        writer.write(
            Batch(
                step=step,
                spark_batch=step,
                epoch=0,
                slots=slots,
                duration_ms=work_ms + COMMIT_MS,
                phases_ms={"slots": work_ms},
                arrived=served,
                served=served,
                emitted=0,
                late=0,
                backlog=0,
                backlog_bytes=0,
                latency_ms=Latency(200.0, 200.0, 250.0, 260.0, 270.0),
                arrivals=tuple(GroupRecords(name, [1, 5], halves) for name in operators),
                slo=state(0.98),
                at_ms=round(end_ms),
            )
        )
    writer.close()
    return path


def test_every_recorded_arrival_is_in_the_trace_of_its_key_group(tmp_path: Path) -> None:
    recorded = Recorded.read(write(tmp_path / "journal.jsonl"))
    counts = recorded.trace().counts
    total = sum(batch.arrived for batch in recorded.batches)
    assert counts.sum(axis=0)[[1, 5]].sum() == counts.sum() == total


def test_arrivals_lie_between_the_beginnings_of_two_batches(tmp_path: Path) -> None:
    recorded = Recorded.read(write(tmp_path / "journal.jsonl"))
    until_s = recorded.began_s[99] - recorded.first_s
    before = recorded.trace().counts[: int(np.ceil(until_s / 0.1))].sum()
    told = sum(batch.arrived for batch in recorded.batches[:100])
    assert abs(before - told) <= recorded.batches[100].arrived


def test_the_costs_of_batches_are_found_again(tmp_path: Path) -> None:
    costs = calibrated(Recorded.read(write(tmp_path / "journal.jsonl")))
    engine, record_s = costs.engine, costs.record_s
    assert engine.task_s == pytest.approx(SLOT_MS / 1e3, rel=0.05)
    assert record_s == pytest.approx(RECORD_MS / 1e3, rel=0.2)
    assert engine.plan_s + engine.commit_s == pytest.approx((PLAN_MS + COMMIT_MS) / 1e3, rel=0.05)
    assert max(engine.warm_up_s) < 0.01


def test_a_replay_names_the_error_of_its_model(tmp_path: Path) -> None:
    found = replay(write(tmp_path / "journal.jsonl"))
    assert found["what_if"] is None
    assert found["model"]["success"] == pytest.approx(1.0)
    assert found["error"]["success_points"] == pytest.approx(2.0, abs=0.01)


def test_what_is_asked_for_is_simulated_beside_what_was(tmp_path: Path) -> None:
    found = replay(write(tmp_path / "journal.jsonl"), slots_max=1, policy_text="streamswitch")
    assert (found["what_if"]["policy"], found["what_if"]["slots_max"]) == ("streamswitch", 1)
    assert found["what_if"]["slots_mean"] == 1.0
    assert found["model"]["policy"] == "static"


def test_a_run_stands_beside_the_oracle_and_the_best_constant(tmp_path: Path) -> None:
    """500 records/s at 0.1 ms each need a twentieth of a slot: one is enough, of 4 on the average."""
    found = replay(write(tmp_path / "journal.jsonl"), oracle=True)
    assert found["oracle"]["oracle_slots"] == found["oracle"]["constant_slots"] == 1
    assert found["real"]["oracle_slots"] == 1.0
    assert found["real"]["to_oracle"] == pytest.approx(found["real"]["slots_mean"], abs=0.001)
    assert "oracle" not in replay(tmp_path / "journal.jsonl")


def test_operators_that_follow_each_other_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    chained = replace(state(0.98), by_operator={"first": 1.0, "second": 0.98})
    monkeypatch.setitem(globals(), "state", lambda _: chained)
    with pytest.raises(ConfigError, match="is of 2 stateful operators, one behind the other"):
        replay(write(tmp_path / "journal.jsonl"))


def test_only_the_last_seconds_are_replayed_if_so_asked(tmp_path: Path) -> None:
    path = write(tmp_path / "journal.jsonl")
    assert len(Recorded.read(path, since_s=15.0).batches) < len(Recorded.read(path).batches)


def test_a_part_of_a_run_is_compared_with_that_part(tmp_path: Path) -> None:
    found = replay(write(tmp_path / "journal.jsonl"), since_s=15.0)
    assert found["real"]["success"] is None
    assert found["error"]["success_points"] is None
    assert found["real"]["slot_hours"] < 6 * 15 / 3600


def test_what_was_only_advised_is_not_simulated_as_done(tmp_path: Path) -> None:
    path = write(tmp_path / "journal.jsonl")
    text = path.read_text().replace('"policy":"static"', '"policy":"streamswitch","advise":true')
    path.write_text(text)
    assert replay(path)["model"]["policy"] == "static"


def test_a_clock_that_was_set_back_and_an_old_backlog_do_not_end_a_replay(tmp_path: Path) -> None:
    recorded = Recorded.read(write(tmp_path / "journal.jsonl"))
    back = [replace(b, at_ms=b.at_ms - 10_000 * (b.step > 100)) for b in recorded.batches]
    old = replace(back[0], latency_ms=Latency(1e12, 1e12, 1e12, 1e12, 1e12))
    odd = replace(recorded, batches=(old, *back[1:]))
    assert odd.trace().counts.sum() == recorded.trace().counts.sum()
    assert calibrated(odd).engine.plan_s >= 0.0


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"operators": ()}, "what arrived by key group"),
        ({"operators": ("a", "b")}, "2 operators"),
        ({"batches": 10}, "10 batches"),
    ],
)
def test_a_journal_that_says_too_little_is_refused(tmp_path: Path, changed, said) -> None:
    with pytest.raises(ConfigError, match=said):
        Recorded.read(write(tmp_path / "journal.jsonl", **changed))


def test_the_fitted_engine_is_shown_without_its_series(tmp_path: Path) -> None:
    engine = replay(write(tmp_path / "journal.jsonl"))["engine"]
    assert not {"warm_up_s", "jitter_s"} & set(engine)
    assert engine["budget_s"] is None


def test_an_slo_on_a_percentile_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="p99"):
        replay(write(tmp_path / "journal.jsonl"), slo_text="p99 < 1 s over 1 s")


def test_a_window_longer_than_the_run_is_refused(tmp_path: Path) -> None:
    path = write(tmp_path / "journal.jsonl")
    with pytest.raises(ConfigError, match="less than the window of"):
        replay(path, slo_text="mean < 1 s over 1000 h")


def test_a_journal_chooses_no_code_of_another_distribution(tmp_path: Path) -> None:
    path = write(tmp_path / "journal.jsonl")
    path.write_text(path.read_text().replace('"policy":"static"', '"policy":"mine(2)"'))
    with pytest.raises(ConfigError, match=r"no journal chooses the code that runs; type it"):
        replay(path)
    with pytest.raises(ConfigError, match=r"no journal chooses the code"):
        replay(path, policy_text="static")
    with pytest.raises(ConfigError, match='unknown policy "mine"'):
        replay(path, policy_text="mine(2)")


@pytest.mark.parametrize(
    ("name", "given"),
    [
        ("as-it-was", {}),
        ("other-policy", {"policy_text": "streamswitch(0.2)", "slots_max": 4, "oracle": True}),
        ("other-slo", {"slo_text": "mean < 500 ms over 2 s", "since_s": 20.0, "seed": 3}),
    ],
)
def test_a_replay_is_as_recorded(
    tmp_path: Path,
    recorded: Callable[[str, Iterable[str]], None],
    name: str,
    given: dict[str, Any],
) -> None:
    found = replay(write(tmp_path / "journal.jsonl"), **given)
    rounded = json.loads(json.dumps(found), parse_float=lambda text: f"{float(text):.6g}")
    recorded(f"replay-{name}", [f"{key} {value}" for key, value in rounded.items()])


@pytest.mark.parametrize(
    ("floor_s", "useful", "slots_max"), [(None, None, 9), (0.25, 4, 4), (None, 1, 2), (None, 30, 9)]
)
def test_a_replay_is_simulated_under_its_conditions(
    monkeypatch: pytest.MonkeyPatch, floor_s: float | None, useful: int | None, slots_max: int
) -> None:
    """Slots that are of no use are not tried, unless the least that is allowed is more."""
    found: list[OperatorSettings] = []

    class Simulated:
        def __init__(self, *_: Any, settings_at: Any, **__: Any) -> None:
            found.append(settings_at("o", 0.5))

        def run(self, duration_s: float) -> None:
            del duration_s

    monkeypatch.setattr(replaying, "Simulation", Simulated)
    monkeypatch.setattr(replaying, "_measured", lambda result: {})
    slo = parse_slo("mean < 2 s over 3 s in 80% of windows")
    given = Conditions(slo, "o", "static", 3, 2, 9, floor_s, "it keeps a list")
    costs: Any = SimpleNamespace(useful=useful, record_s=0.01, engine=None)
    arrivals: Any = SimpleNamespace(key_groups=8)
    row = replaying._simulated(arrivals, 10.0, costs, given, seed=1)
    assert (row["policy"], row["slots_max"]) == ("static", 9)
    [settings] = found
    assert (settings.success, settings.window_s, settings.bound_s) == (0.8, 3.0, 2.0)
    assert (settings.slots_min, settings.slots_max) == (2, slots_max)
    assert settings.floor_s == (0.5 if floor_s is None else floor_s)
    assert settings.unsplittable == "it keeps a list"
