"""What a diagnosis says of five incidents that were made on Spark, and of journals made by hand.

The journals in `incidents` are of small queries with the SLO "mean < 2 s over 2 s": their first two
batches and their last ones, with the key groups that got most.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest
import runs

from headgate.core.errors import ConfigError
from headgate.journal import (
    AssignmentChange,
    Batch,
    ControlAct,
    Decided,
    Event,
    Latency,
    NotReadyToDecide,
    SlotStats,
    Start,
    Stop,
    Wish,
    read,
)
from headgate.journal.parts import GroupRecords, SloState
from headgate.report.diagnose import DiagnosisReader, diagnose, diagnose_lines, labelled
from headgate.report.format import at_text
from headgate.report.limits import Case, DriverSeen, Limit
from headgate.report.standing import Standing
from headgate.report.why import why

INCIDENTS = Path(__file__).parent / "incidents"
ALIVE = DriverSeen(holds=True, owner="host a, process 7")


def diagnosed(
    events: list[Event], driver: DriverSeen = ALIVE, after_s: float = 1.0
) -> dict[str, Any]:
    now_ms = max(event.at_ms for event in events) + round(after_s * 1000)
    return diagnose(events, "CK", now_ms=now_ms, driver=driver)


@pytest.mark.parametrize(
    ("name", "cause", "why", "remedy"),
    [
        ("hot", "one key", "key group 113 has 90% of the records", "divide the key in the query"),
        (
            "cores",
            "cores",
            "the policy finds that one core is the limit",
            "local[N] with N above 1",
        ),
        ("source", "source", "held to maxFilesPerTrigger=1", "leave out maxFilesPerTrigger"),
        ("sink", "sink", "the sink takes 92% of the time", "make the sink"),
        ("dead", "driver", "the driver was killed, or crashed", "start the query again"),
    ],
)
def test_the_cause_of_an_incident_is_named(name: str, cause: str, why: str, remedy: str) -> None:
    events = list(read(INCIDENTS / f"{name}.jsonl"))
    driver = DriverSeen(holds=False) if name == "dead" else ALIVE
    found = diagnosed(events, driver)
    assert found["limit"]["cause"] == cause
    assert why in found["limit"]["why"]
    assert remedy in found["do"][0]
    assert found["slo"]["met"] is False
    text = "\n".join(diagnose_lines(found))
    assert "mean < 2 s over 2 s: MISSED since 20" in text
    assert "status" not in text


def test_the_key_is_shown_where_it_is_written_down() -> None:
    hot, cores = (
        diagnosed(list(read(INCIDENTS / f"{name}.jsonl")))["hot"] for name in ("hot", "cores")
    )
    assert hot["operator"] == "processor-0"
    assert (hot["group"], hot["key"].partition(" (")[0]) == (113, "k = 7")
    assert cores["key"] is None
    assert "showKeys" not in cores["text"]


# -- by hand ------------------------------------------------------------------------------------------


def judged(step: int, mean_ms: float, **fields: Any) -> Batch:
    """A batch of two slots with that latency, and a working time of 100 of 400 ms each."""
    stats = tuple(SlotStats(s, 64, 50, 0, 100.0, mean_ms, mean_ms, 30.0, 0.0) for s in range(2))
    latency = Latency(*[mean_ms] * 5)
    return runs.batch(step, **{"slot_stats": stats, "latency_ms": latency} | fields)


def begun(**parameters: Any) -> Event:
    settled = {"slo": ["mean < 1 s over 1 s"], "cores": 4, "policy": "unified", "slots_max": 8}
    return runs.start(parameters=settled | parameters)


def run_of(*means_ms: float, **parameters: Any) -> list[Event]:
    return [begun(**parameters), *(judged(n, ms) for n, ms in enumerate(means_ms))]


def late_run(change: dict[str, Any], **parameters: Any) -> list[Event]:
    """Twenty late batches, each with what `change` says."""
    return [begun(**parameters), *(judged(n, 3000.0, **change) for n in range(20))]


def test_since_when_is_the_begin_of_the_last_stretch_of_late_batches() -> None:
    met, late = [300.0] * 40, [2000.0] * 5
    missed = diagnosed(run_of(*met, *late))["slo"]
    assert (missed["met"], missed["since_ms"]) == (False, judged(40, 0).at_ms - 300)
    again = diagnosed(run_of(*met, *late, *met))["slo"]
    assert (again["met"], again["since_ms"]) == (True, judged(44, 0).at_ms)
    assert again["before"].startswith("missed for 2 s from 20")
    assert "neither slots (25% at the most)" in again["before"]  # its cause
    assert again["now"] == "mean over 10 batches is 300 ms, below the bound of 1,000 ms"
    assert missed["now"] == "mean over 10 batches is 1,150 ms, 1.1 times the bound of 1,000 ms"
    assert missed["before"] == ""
    never = diagnosed(run_of(*met))["slo"]
    assert (never["met"], never["since_ms"]) == (True, runs.BEGAN_MS)


def test_a_share_that_falls_is_a_window_missed_whatever_the_slots_mean() -> None:
    state = slo_state(success=1.0, success_worst=1.0)
    fallen = dataclasses.replace(state, success=0.999, success_worst=0.9)
    events = [begun(), *(judged(n, 300.0, slo=state) for n in range(40))]
    assert diagnosed(events)["slo"]["met"] is True
    assert diagnosed([*events, judged(40, 300.0, slo=fallen)])["slo"]["met"] is False


def counted(step: int, windows: int, met: int, worst: float = 1.0, mean_ms: float = 300.0) -> Batch:
    """A batch after which so many windows are judged and met since the start."""
    state = slo_state(
        windows=windows, windows_met=met, success=met / windows, success_worst=worst, wanted=0.99
    )
    return judged(step, mean_ms, slo=state)


def test_a_window_that_an_slo_allows_to_miss_is_no_stretch_of_late_batches() -> None:
    calm = [begun(), *(counted(n, 1000 * (n + 1), 998 * (n + 1), 0.995) for n in range(40))]
    assert diagnosed(calm)["slo"]["met"] is True
    slow_slot = [*calm, counted(40, 41_000, 998 * 41, 0.995, mean_ms=5_000.0)]
    assert diagnosed(slow_slot)["slo"]["met"] is True  # its windows were in time
    missed = diagnosed([*calm, counted(40, 41_000, 998 * 40 + 600, 0.995)])["slo"]
    assert (missed["met"], missed["since_ms"]) == (False, judged(40, 0).at_ms - 300)


def test_an_slo_is_met_again_when_ten_windows_in_a_row_were() -> None:
    wide = {"slo": ["mean < 1 s over 8 s"]}  # so ten windows are 200 batches
    met = [min(n, 50) + max(0, n - 60) for n in range(300)]  # ten windows were missed
    run = [begun(**wide), *(counted(n, n + 1, m + 1) for n, m in enumerate(met))]
    assert diagnosed(run[:240])["slo"]["met"] is False
    found = diagnosed(run)["slo"]
    assert (found["met"], found["before"][:6]) == (True, "missed")


def test_a_window_that_is_found_to_be_met_a_batch_later_is_not_missed() -> None:
    pairs = [(1000 * (n + 1), 1000 * (n + 1) - 50 * (n % 2)) for n in range(60)]
    events = [begun(), *(counted(n, judged, met) for n, (judged, met) in enumerate(pairs))]
    assert diagnosed(events)["slo"]["met"] is True


def test_a_single_key_group_that_misses_its_windows_misses_the_slo() -> None:
    calm = [begun(), *(counted(n, 1000 * (n + 1), 995 * (n + 1), 1.0) for n in range(40))]
    worse = [counted(40 + n, 1000 * (n + 41), 995 * (n + 41), 0.9 - n / 100) for n in range(5)]
    assert diagnosed([*calm, *worse])["slo"]["met"] is False
    no_more = [counted(45 + n, 1000 * (n + 46), 995 * (n + 46), 0.87 + n / 1e3) for n in range(60)]
    assert diagnosed([*calm, *worse, *no_more])["slo"]["met"] is True


@pytest.mark.parametrize(
    ("change", "parameters", "cause", "remedy"),
    [
        ({"backlog": 900}, {}, "slots", 'headgate scale CK 3 --reason "behind"'),
        ({"backlog": 900, "slots": 8}, {}, "slots", "allow more: .slots(max=16)"),
        ({}, {"trigger": {"processingTime": "10 seconds"}}, "trigger", '"250 milliseconds"'),
        ({"lag": {"clicks-0": 5000}}, {}, "source", "what feeds the source"),
        ({}, {"source_limits": {"maxOffsetsPerTrigger": "9"}}, "source", "maxOffsetsPerTrigger"),
        ({}, {}, "batch", "what feeds the source"),
    ],
)
def test_what_limits_work(
    change: dict[str, Any], parameters: dict[str, Any], cause: str, remedy: str
) -> None:
    if "trigger" in parameters or "slo" in change:
        change = change | {"slo": slo_state()}
    found = diagnosed(late_run(change, **parameters))
    assert found["limit"]["cause"] == cause, found["limit"]
    assert remedy in found["do"][0]


def slo_state(**fields: Any) -> SloState:
    given: dict[str, Any] = {
        "state": "steady", "frozen": False, "success": 0.5, "success_worst": 0.4, "worst_group": 3,
        "worst_operator": "a", "windows": 10, "windows_empty": 0, "wanted": 0.99,
        "bound_ms": 1000.0, "floor_ms": 100.0, "loop_ms": 0.0, "cycles": 0,
    }  # fmt: skip
    return SloState(**given | fields)


def test_frozen_slots_are_thawed_and_no_floor_of_a_job_behind_is_believed() -> None:
    frozen = diagnosed(late_run({"backlog": 900, "slo": slo_state(frozen=True)}))
    assert frozen["do"] == ["headgate thaw CK"]
    unreachable = slo_state(state="unreachable", floor_ms=700.0)
    assert diagnosed(late_run({"slo": unreachable}))["limit"]["cause"] == "floor"
    changing = slo_state(state="changing", floor_ms=501.0)
    assert diagnosed(late_run({"slo": changing}))["limit"]["cause"] == "floor"
    reachable = slo_state(state="changing", floor_ms=500.0)
    assert diagnosed(late_run({"slo": reachable}))["limit"]["cause"] == "batch"
    learnt_behind = slo_state(state="unreachable", floor_ms=23_000.0)
    assert diagnosed(late_run({"slo": learnt_behind}))["limit"]["cause"] == "batch"


def test_a_bound_that_is_missed_by_more_than_the_floor_is_to_be_raised_above_what_records_take() -> (
    None
):
    unreachable = slo_state(state="unreachable", floor_ms=700.0)
    found = diagnosed(late_run({"slo": unreachable}))
    assert found["limit"]["why"].endswith(". Records now take 3,000 ms in the mean")
    assert found["do"] == ["raise the bound above 3,000 ms"]
    change = {"slo": unreachable, "latency_ms": Latency(*[1_400.0] * 5)}
    assert diagnosed(late_run(change))["do"] == ["raise the bound to 1,400 ms or more"]


def test_records_that_get_later_and_later_are_held_back_at_the_source_whatever_the_floor() -> None:
    unreachable = slo_state(state="unreachable", floor_ms=700.0)

    def later(by_ms: float) -> dict[str, Any]:
        runs = (
            judged(n, 3e3, slo=unreachable, latency_ms=Latency(*[3e3 + by_ms * n] * 5))
            for n in range(20)
        )
        return diagnosed([begun(), *runs])

    found = later(250.0)
    assert found["limit"]["cause"] == "source"
    assert found["limit"]["why"].startswith(
        "records are late before they are read, later and later"
    )
    assert found["do"][0] == "look at what feeds the source"
    assert found["do"][-1].startswith("and raise the bound to ")
    slowly, recovers = later(50.0), later(-140.0)
    assert slowly["limit"]["cause"] == recovers["limit"]["cause"] == "floor"
    assert slowly["do"][0].startswith("raise the bound above ")
    assert recovers["do"] == ["raise the bound to 1,400 ms or more"]


@pytest.mark.parametrize(("bound_ms", "seldom"), [(19_999.0, False), (20_000.0, True)])
def test_to_write_less_often_is_a_remedy_where_records_may_wait_for_it(
    bound_ms: float, *, seldom: bool
) -> None:
    state = slo_state(bound_ms=bound_ms)
    found = diagnosed(late_run({"slo": state, "phases_ms": {"sink": 900.0}}))
    assert found["limit"]["cause"] == "sink"
    assert any("write less often" in text for text in found["do"]) == seldom


def test_one_key_is_told_by_what_arrives_not_by_what_a_budget_lets_through() -> None:
    stats = (SlotStats(0, 64, 50, 9000, 300.0, 3e3), SlotStats(1, 64, 50, 10, 300.0, 3e3))
    change = {
        "slot_stats": stats,
        "backlog": 9010,
        "arrivals": (GroupRecords("a", [3, 17], [10, 90]),),
        "hottest": ((3, 10), (17, 10)),
    }
    found = diagnosed(late_run(change))
    assert found["limit"]["cause"] == "one key"
    assert found["hot"]["group"] == 17
    assert 'option("headgate.showKeys", "true")' in found["hot"]["text"]
    assert "streamswitch" in found["do"][0]


@pytest.mark.parametrize(
    ("driver", "after_s", "cause"),
    [
        (DriverSeen(holds=True, committed=9), 60.0, "idle"),
        (DriverSeen(holds=True, committed=10), 60.0, "sink"),
        (DriverSeen(holds=True, committed=9, begun=10), 60.0, "slots"),
        (DriverSeen(holds=False, committed=9), 2.0, "driver"),
        (DriverSeen(holds=None), 60.0, "driver"),
        (DriverSeen(holds=None), 2.0, "nothing"),
    ],
)
def test_silence_is_told_by_the_files_of_the_checkpoint(
    driver: DriverSeen, after_s: float, cause: str
) -> None:
    found = diagnosed(run_of(*[300.0] * 10), driver, after_s)
    assert found["limit"]["cause"] == cause
    assert found["slo"]["met"] is not (cause == "driver")


def test_an_end_and_a_beginning_are_no_silence() -> None:
    ended = [*run_of(300.0), Stop("stopped", None, {}, runs.BEGAN_MS + 9000)]
    stopped = diagnosed(ended, DriverSeen(holds=False))["limit"]
    assert stopped["cause"] == "stopped"
    assert "its own program stopped it" in stopped["why"]
    asked = ControlAct("stop", "ann@host", "INC-1", at_ms=runs.BEGAN_MS + 8999)
    stopped = diagnosed([*ended[:-1], asked, ended[-1]], DriverSeen(holds=False))["limit"]
    assert "ann@host stopped it (INC-1)" in stopped["why"]
    failed = [*run_of(300.0), Stop("failed", "ValueError: no", {}, runs.BEGAN_MS + 9000)]
    found = diagnosed(failed, DriverSeen(holds=False))
    assert found["limit"]["cause"] == "failure"
    assert "ValueError: no" in found["limit"]["why"]
    assert "ValueError" not in found["query"]["text"]
    starting = diagnosed([begun()], after_s=45.0)
    assert starting["limit"]["cause"] == "starting"
    assert starting["slo"]["met"] is None
    assert "no batch yet, started 45 s ago" in starting["query"]["text"]
    assert diagnosed([begun()], DriverSeen(holds=False))["limit"]["cause"] == "driver"


def test_what_was_tried_and_what_was_refused_is_said_once() -> None:
    wish = (Wish("a", "scale-out", 3, 4),)
    at_ms = runs.BEGAN_MS + 500
    events: list[Event] = [
        *run_of(300.0),
        Decided("unified", "r", "too slow", acts=True, wishes=wish, at_ms=at_ms),
        AssignmentChange(1, 1, 2, 3, 4, 0, "unified", "too slow", at_ms=at_ms),
        Decided("unified", "r", "would be better", acts=False, wishes=wish, at_ms=at_ms),
        ControlAct("scale", "ann@host", "INC-1", "9 slots", "the assignment is frozen", at_ms),
        Decided("unified", "limit", "the cores are the limit", acts=False, at_ms=at_ms),
    ]
    tried = [text.partition(" ")[2].partition(" ")[2] for text in diagnosed(events)["tried"]]
    assert tried[:3] == [
        "slots 2 to 3 by unified: too slow",
        "unified wanted scale-out of a to 3 slots (advice only): would be better",
        "scale 9 slots by ann@host: INC-1; refused: the assignment is frozen",
    ]
    assert len(diagnosed(events)["tried"]) == 3
    assert diagnosed(events)["policy"] == "unified leaves the slots as they are"


def test_the_policy_gives_its_reason_only_where_that_is_no_second_limit() -> None:
    decided = Decided("unified", "limit", "it may use 2", acts=False, at_ms=runs.BEGAN_MS + 9_000)
    few = diagnosed([*late_run({"backlog": 900}), decided])
    assert few["limit"]["cause"] == "slots"
    assert few["policy"] == "unified leaves the slots as they are: it may use 2"
    other = diagnosed([*late_run({"lag": {"clicks-0": 5000}}), decided])
    assert other["limit"]["cause"] == "source"
    assert other["policy"] == "unified leaves the slots as they are: more slots do not help here"


@pytest.mark.parametrize(
    "why_not",
    [
        "the counters are of epoch 0, epoch 1 holds",
        "slots have measured assignment 11, and 12 is in force",
    ],
)
def test_a_policy_waits_in_words_of_the_users(why_not: str) -> None:
    waits = NotReadyToDecide("a", why_not, runs.BEGAN_MS + 9_000)
    found = diagnosed([*run_of(*[300.0] * 12), waits])
    assert found["policy"] == (
        "waits: slots have just changed, and no batch has measured the new ones yet"
    )
    held = judged(12, 300.0, slo=slo_state(held_until_ms=runs.BEGAN_MS + 3_600_000))
    assert diagnosed([*run_of(*[300.0] * 12), waits, held])["policy"] == (
        f"waits: the number of slots is held until {at_text(held.slo.held_until_ms)}"
    )
    ended = Stop("stopped", None, {}, runs.BEGAN_MS + 9_500)
    assert diagnosed([*run_of(*[300.0] * 12), waits, ended])["policy"] == "", (
        "nobody waits any more"
    )


def test_a_query_that_is_gone_tells_how_late_it_was_and_why() -> None:
    late = [
        *run_of(*[300.0] * 40),
        *(judged(n, 30_000.0, backlog=9_000 + n) for n in range(40, 60)),
    ]
    found = diagnosed(late, DriverSeen(holds=False))
    assert found["limit"]["cause"] == "driver"
    assert found["slo"]["since_ms"] == judged(40, 0).at_ms - 300, "not since the driver is gone"
    assert found["slo"]["now"] == (
        "at the end mean over 10 batches was 30,000 ms, 30 times the bound of 1,000 ms; 9,059 records "
        "waited, more and more"
    )
    assert found["late_by"]["cause"] == "slots"
    assert found["late_by"]["why"].startswith("2 slots are too few")
    assert found["do"][-2:] == [
        "and against its lateness:",
        'headgate scale CK 3 --reason "behind"',
    ]
    labels = [label for label, _ in labelled(found)]
    assert labels.index("late by") < labels.index("ended")
    in_time = diagnosed(run_of(*[300.0] * 40), DriverSeen(holds=False))
    assert (in_time["slo"]["met"], in_time["late_by"]) == (False, None)
    assert ": MISSED: no results since 20" in in_time["slo"]["verdict"]
    assert "; met until then" in in_time["slo"]["verdict"]


def test_who_took_slots_shortly_before_is_named_and_how_to_undo_it() -> None:
    def taken(at: int, by: str, before: int, after: int) -> AssignmentChange:
        at_ms = judged(at, 0).at_ms - 100
        return AssignmentChange(
            at, 1, before, after, 0, 0, by, "save cost; at night", "a", at_ms=at_ms
        )

    met = run_of(*[300.0] * 300)
    late = [judged(n, 30_000.0, backlog=9_000 + n) for n in range(300, 320)]
    found = diagnosed([*met, taken(298, "night-shift", 3, 2), *late])
    assert "night-shift has changed 3 to 2 at 20" in found["limit"]["why"]
    assert found["limit"]["why"].endswith("(save cost)")
    assert found["do"][0] == 'headgate scale CK 3 --reason "undo"'
    others = ([taken(1, "night-shift", 3, 2), *met, *late], [*met, taken(298, "x", 1, 2), *late])
    for events in others:
        events.sort(key=lambda event: (not isinstance(event, Start), event.at_ms))
        assert diagnosed(events)["do"][0] == 'headgate scale CK 3 --reason "behind"'


def test_in_real_time_no_trigger_of_batches_is_advised() -> None:
    slow = {"phases_ms": {"slots": 10.0, "sink": 400.0}}
    assert len(diagnosed(late_run(slow))["do"]) == 2
    in_real_time = diagnosed([in_epochs(event) for event in late_run(slow)])
    assert in_real_time["limit"]["cause"] == "sink"
    assert len(in_real_time["do"]) == 1


def in_epochs(event: Event) -> Event:
    return dataclasses.replace(event, epochs=20) if isinstance(event, Batch) else event


def test_in_real_time_the_time_is_that_of_an_epoch_and_the_sink_works_beside_it() -> None:
    second = {"phases_ms": {"slots": 160.0, "manifest": 40.0, "sink": 990.0}}
    found = diagnosed([in_epochs(event) for event in late_run(second)])["time"]
    assert found["phases_ms"] == {"sink": 49.5, "slots": 8.0, "manifest": 2.0}
    in_batches = diagnosed(late_run(second))["time"]
    assert found["period_ms"] == pytest.approx(in_batches["period_ms"] / 20)
    assert found["text"].startswith(
        "an epoch takes 10 ms: slots 8.0 ms (80%), manifest 2.0 ms (20%)"
    )
    assert found["text"].endswith("(nothing was due); the sink takes 50 ms beside the next ones")


def test_what_a_policy_waited_for_is_not_told_any_more_once_it_decides_again() -> None:
    waits = NotReadyToDecide("o", "3 of 10 ticks")
    events = [*run_of(300.0, 300.0, 300.0), waits]
    found = [
        diagnosed([e if not isinstance(e, Batch) else stands(e, state) for e in events])["policy"]
        for state in ("not ready", "steady")
    ]
    assert found == ["waits: 3 of 10 ticks", ""]


def stands(batch: Batch, state: str) -> Batch:
    return dataclasses.replace(batch, slo=slo_state(state=state))


def test_late_batches_without_one_in_time_between_are_one_stretch() -> None:
    standing = Standing(["mean < 1 s over 1 s"])
    standing.add(judged(0, 3000.0))
    standing.add(dataclasses.replace(judged(1, 3000.0), at_ms=judged(1, 0).at_ms + 60_000))
    assert len(standing.stretches) == 1
    standing.add(dataclasses.replace(judged(2, 300.0), at_ms=judged(2, 0).at_ms + 61_000))
    standing.add(dataclasses.replace(judged(3, 3000.0), at_ms=judged(3, 0).at_ms + 120_000))
    assert len(standing.stretches) == 2


def test_batches_after_a_start_are_late_because_of_the_start() -> None:
    found = diagnosed(run_of(9_000.0, 9_000.0, *[300.0] * 60))
    assert found["slo"]["before"].endswith(
        "workers start, and kernels are compiled once on a machine"
    )


def test_a_change_names_the_key_groups_that_it_split_and_no_others() -> None:
    def change(step: int, *groups: int, slots: int = 2) -> AssignmentChange:
        split = tuple((group, 0, 1) for group in groups)
        return AssignmentChange(
            step, step, 2, slots, 0, 0, "p", "busy; of 668 rules", "a", split=split,
            at_ms=runs.BEGAN_MS + step,
        )  # fmt: skip

    events = [
        *run_of(300.0),
        change(1, 1),
        change(2, 1, 5),
        change(3, 5, 6, 7, 8, 9),
        change(4, slots=3),
        change(5, slots=2),
    ]
    tried = [text.partition(" ")[2].partition(" ")[2] for text in diagnosed(events)["tried"]]
    assert tried == [
        "key group 1 split over 2 slots by p: busy",
        "key group 5 split over 2 slots by p: busy",
        "4 key groups split over 2 slots, key group 1 whole again by p: busy",
        "slots 2 to 3, 5 key groups whole again by p: busy",
        "0 key groups moved by p: busy",
    ]


def test_a_long_miss_is_asked_for_its_cause_seldom(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []

    def limit(case: Case) -> Limit:
        asked.append(case.now_ms)
        return Limit("slots", "why")

    monkeypatch.setattr("headgate.report.diagnose.limit_of_work", limit)
    diagnosed(run_of(*[9_000.0] * 30_000))  # more than three hours of a late batch each 0.4 s
    assert 100 < len(asked) < 400


def test_without_an_slo_it_says_so_and_why_and_diagnose_do_not_ask_each_other() -> None:
    events: list[Event] = [runs.start(), *(runs.batch(n) for n in range(12))]
    found = diagnosed(events)
    assert "none is set" in found["slo"]["text"]
    assert found["limit"]["why"].startswith("nothing says that the query is behind: ")
    assert found["limit"]["cause"] == "nothing"
    with pytest.raises(ConfigError, match="headgate diagnose"):
        why(events, None)


@pytest.mark.parametrize("name", ["cores", "dead", "hot", "sink", "source"])
def test_a_cause_that_is_asked_for_later_is_that_of_its_batch(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Stretches of late batches, long and short, with changes of slots between them."""
    incident = list(read(INCIDENTS / f"{name}.jsonl"))
    batches = [event for event in incident if isinstance(event, Batch)]
    made: list[Event] = [incident[0]]
    for step in range(300):
        at_ms = incident[0].at_ms + 1_000 * step
        slo = batches[0].slo
        if slo is not None:
            met = step - sum(1 for n in range(step) if n % 37 < n // 20)
            slo = dataclasses.replace(slo, windows=step, windows_met=met, windows_of={})
        batch = batches[step % len(batches)]
        made.append(dataclasses.replace(batch, step=step, at_ms=at_ms, slo=slo))
        if step % 41 == 0:
            change = AssignmentChange(step, 1, 3, 2, 9, 0, "unified", "busy", "a", at_ms=at_ms)
            made.append(change)

    def causes(unasked: int) -> list[tuple[object, ...]]:
        monkeypatch.setattr("headgate.report.diagnose._UNASKED_MAX", unasked)
        reading, found = DiagnosisReader(), []
        for number, event in enumerate(made):
            reading.absorb(event)
            if unasked == 0 or number % 23 == 0:
                found.append((number, reading.past_cause, dict(reading.causes)))
        return [line for line in found if line[0] % 23 == 0]

    assert causes(8) == causes(0)
    assert any(line[1] for line in causes(8)) or name == "source"


def test_before_its_start_a_query_has_no_beginning_and_its_slo_is_not_known() -> None:
    lines = diagnose_lines(diagnose([], "/ck", now_ms=1_795_736_000_000))
    assert lines[0].split(None, 1)[1].startswith("the journal has no start event yet")
    assert lines[1] == "SLO     not known before the start"
    assert not any("1970" in line for line in lines)
