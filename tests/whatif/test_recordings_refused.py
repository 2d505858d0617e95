"""Journals that no query can have written are refused by what is wrong; at the ends they are taken."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from headgate.core.duration import LONGEST_S
from headgate.core.errors import ConfigError
from headgate.core.input import KEY_GROUPS_MAX, RATE_MAX
from headgate.journal.parts import GroupRecords, Latency, SlotStats
from headgate.journal.schema import Batch, Decided, Start, Wish
from headgate.whatif import calibration, recording, simulate
from headgate.whatif.recording import AT_ONCE, Recorded

GROUPS = 8


def batch(step: int, **changed: Any) -> Batch:
    made = Batch(
        step=step, spark_batch=step, epoch=0, slots=2, duration_ms=800.0, phases_ms={"slots": 700.0},
        arrived=10, served=10, emitted=0, late=0, backlog=0, backlog_bytes=0,
        latency_ms=Latency(200.0, 200.0, 250.0, 260.0, 270.0), at_ms=1_000_000 + 1000 * step,
        arrivals=(GroupRecords("it", [1, 7], [6, 4]),), slot_stats=(SlotStats(0, 4, 10, 0, 300.0),),
    )  # fmt: skip
    return replace(made, **changed)


def run(batches: int = 40, odd: dict[str, Any] | None = None, **parameters: Any) -> Recorded:
    settings = {"policy": "static", "slots_max": 8, "slo": ["mean < 1 s over 1 s"], **parameters}
    given = {key: value for key, value in settings.items() if value is not ...}
    start = Start(job="j", name="q", key_groups=GROUPS, slots=2, parameters=given, at_ms=1)
    made = [batch(step) for step in range(batches)]
    if odd is not None:
        made[7] = replace(made[7], **odd)
    return Recorded(start, tuple(made), {})


def served(count: int, took_ms: float = 1.0, **more: Any) -> tuple[SlotStats, ...]:
    return (SlotStats(0, 4, count, 0, took_ms, **more),)


@pytest.mark.parametrize(
    ("odd", "says"),
    [
        (
            {"arrivals": (GroupRecords("it", [1], [1, 2]),)},
            "step 7 has more or fewer key groups than",
        ),
        (
            {"arrivals": (GroupRecords("it", [8], [1]),)},
            "step 7 has key groups that the query has not",
        ),
        ({"arrivals": (GroupRecords("it", [-1], [1]),)}, "has key groups that the query has not"),
        ({"arrivals": (GroupRecords("it", [0], [-1]),)}, "counts less than nothing, or too much"),
        ({"arrivals": (GroupRecords("it", [0], [AT_ONCE + 1]),)}, "counts less than nothing"),
        ({"slots": 0}, "step 7 ran without a slot"),
        ({"slot_stats": served(-1)}, "has a slot that did what none can do"),
        ({"slot_stats": served(AT_ONCE + 1)}, "has a slot that did what none can do"),
        ({"slot_stats": served(1, -1.0)}, "has a slot that did what none can do"),
        ({"slot_stats": served(1, LONGEST_S * 1.01e3)}, "has a slot that did what none can do"),
        ({"slot_stats": served(1, 1.0, computing_ms=-1.0)}, "has a slot that did what none can do"),
        ({"slot_stats": served(1, 1.0, waited_ms=-1.0)}, "has a slot that did what none can do"),
    ],
)
def test_a_batch_that_cannot_have_been_is_named(odd: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError, match="the journal of ck makes no sense: ") as refused:
        run(odd=odd)._check("ck")
    assert says in str(refused.value)


def test_a_batch_may_be_at_the_ends_of_what_can_be() -> None:
    for odd in (
        {"arrivals": (GroupRecords("it", [0, 7], [0, AT_ONCE]),)},
        {"slot_stats": served(AT_ONCE, LONGEST_S * 1e3, computing_ms=0.0, waited_ms=0.0)},
        {"slot_stats": served(0, 0.0)},
        {"slots": 1},
    ):
        run(odd=odd)._check("ck")


@pytest.mark.parametrize(
    ("name", "low", "high"),
    [
        ("slots_max", 1, KEY_GROUPS_MAX), ("slots_min", 1, KEY_GROUPS_MAX), ("cores", 1, 10**6),
        ("machine_cores", 1, 10**6), ("budget_s", 1e-6, LONGEST_S), ("slot_rate", 1e-6, RATE_MAX),
        ("floor_s", 0, LONGEST_S),
    ],
)  # fmt: skip
def test_settings_have_both_ends(name: str, low: float, high: float) -> None:
    for value in (low, high):
        run(**{name: value})._check("ck")
    beyond = [low - 1, high + 1] if isinstance(high, int) else [low * 0.9 - (low == 0), high * 1.1]
    for value in (*beyond, True, "8"):
        with pytest.raises(ConfigError, match=f"its setting {name} is "):
            run(**{name: value})._check("ck")


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"batches": 39}, "has 39 batches in the time asked for; replay 40 or more"),
        ({"policy": ...}, "does not name policy and slots_max"),
        ({"slots_max": ...}, "does not name policy and slots_max"),
        ({"policy": 5}, "its setting policy is 5"),
        ({"slo": "mean < 1 s over 1 s"}, "its setting slo is 'mean < 1 s over 1 s'"),
        ({"slo": [5]}, "its SLO is no text"),
    ],
)
def test_what_a_replay_needs_is_there(given: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError, match=f"the journal of ck .*{says}"):
        run(**given)._check("ck")


def test_a_run_in_which_nothing_was_done_or_too_much_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    nothing = tuple(replace(b, served=0) for b in run().batches)
    with pytest.raises(ConfigError, match="no record was served"):
        replace(run(), batches=nothing)._check("ck")
    last = (*nothing[:-1], replace(nothing[-1], served=1))
    with pytest.raises(ConfigError, match="no record was served"):
        replace(run(), batches=last)._check("ck")
    monkeypatch.setattr(recording, "_RECORDS_MAX", 400)
    run()._check("ck")
    monkeypatch.setattr(recording, "_RECORDS_MAX", 399)
    with pytest.raises(ConfigError, match="400 records arrived, not 1 to 399"):
        run()._check("ck")
    for records, is_run in ((1, True), (0, False)):
        few = tuple(replace(b, arrivals=()) for b in run().batches[1:])
        first = replace(run().batches[0], arrivals=(GroupRecords("it", [1], [records]),))
        made = replace(run(), batches=(first, *few))
        with nullcontext() if is_run else pytest.raises(ConfigError, match="0 records arrived"):
            made._check("ck")
    monkeypatch.undo()
    at_once = tuple(replace(b, at_ms=5, duration_ms=1.0, latency_ms=None) for b in run().batches)
    with pytest.raises(ConfigError, match="it spans 0 s; name a part with --since"):
        replace(run(), batches=at_once)._check("ck")


def test_the_numbers_of_a_run_are_those_of_its_batches() -> None:
    plain = run()
    assert plain.slots_mean == 2.0
    assert plain.latency_mean_ms == 200.0
    assert plain.operator == "it"
    # the oldest record of the first two batches had waited 270 ms when the first one began
    assert plain.first_s == pytest.approx(999.2 - 0.27)
    old = replace(plain.batches[1], latency_ms=Latency(1.0, 1.0, 1.0, 1.0, 100_000.0))
    assert replace(plain, batches=(plain.batches[0], old)).first_s == pytest.approx(999.2 - 60.0)
    silent = tuple(replace(b, latency_ms=None) for b in plain.batches)
    assert replace(plain, batches=silent).latency_mean_ms is None
    assert replace(plain, batches=silent).first_s == pytest.approx(999.2)
    more = replace(plain.batches[1], slots=5, at_ms=1_004_000)
    assert replace(plain, batches=(plain.batches[0], more, more)).slots_mean == 2.0
    back = replace(plain.batches[1], at_ms=0)
    at_once = replace(plain, batches=(plain.batches[0], back))
    assert at_once.began_s.tolist() == [999.2, 999.2]
    assert at_once.slots_mean == plain.batches[0].slots
    total = plain.trace()
    assert (total.total, total.slice_s, total.counts.shape[1]) == (400, 0.1, GROUPS)
    assert total.counts.sum(axis=0).tolist() == [0, 240, 0, 0, 0, 0, 0, 160]


def test_decisions_of_the_last_start_are_counted(tmp_path: Any) -> None:
    from headgate.journal import JournalWriter

    start = run().start
    decided = [
        Decided("p", "r", "why", acts, (Wish("it", kind, 3, 1), Wish("it", "balance", 3, 1)), at_ms=at)
        for acts, kind, at in ((True, "scale-out", 1_000_500), (False, "scale-in", 1_020_000),
                               (True, "scale-in", 1_040_000))
    ]  # fmt: skip
    path = tmp_path / "journal.jsonl"
    with JournalWriter(path) as writer:
        for event in (start, batch(0), decided[0], start, *(batch(n) for n in range(81)), *decided):
            writer.write(event)
    assert Recorded.read(path).changes == {"balance": 2, "scale-in": 1, "scale-out": 1}
    part = Recorded.read(path, since_s=40.0)  # the last decision came just then
    assert (len(part.batches), part.changes) == (41, {"balance": 1, "scale-in": 1})
    empty = tmp_path / "empty.jsonl"
    empty.touch()
    with pytest.raises(ConfigError, match="is empty; replay a query that has run"):
        Recorded.read(empty)


# --- Costs, and what is simulated ---------------------------------------------------------------------


def tasks(*rows: tuple[float, float]) -> list[calibration.Task]:
    return [calibration.Task(useful_s=useful_s, served=served) for useful_s, served in rows]


def test_a_line_through_tasks_has_no_negative_part() -> None:
    exact = calibration._line([tasks((0.3, 10), (0.5, 20)), tasks((0.7, 30))])
    assert exact == pytest.approx((0.1, 0.02))
    below = calibration._line([tasks((0.0, 10), (1.0, 20))])
    assert below == (0.0, pytest.approx(1.0 / 30))
    falling = calibration._line([tasks((1.0, 10), (0.5, 20))])
    assert falling == (pytest.approx(0.75), 0.0)


def test_what_records_cost_is_beside_what_a_task_costs() -> None:
    batches = [tasks((0.3, 10), (0.1, 0)), tasks((0.1, 0)), tasks((0.5, 10), (0.05, 10))]
    found = calibration._factors(batches, 0.1, 0.02)
    assert found.tolist() == pytest.approx([1.0, 1.0, 0.35 / 0.4])
    assert calibration._factors([tasks((0.0, 10))], 0.1, 0.02).tolist() == [0.0]


def test_too_many_policies_are_refused() -> None:
    with pytest.raises(ConfigError, match="101 policies are too many to compare; name 100 at most"):
        simulate.simulate(None, ["static"] * 101)  # type: ignore[arg-type]
    assert np.isfinite(simulate._HOUR_S)
