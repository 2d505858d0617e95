"""Tests the words of an advice for rows that are told, and which of several points is taken."""

from __future__ import annotations

from typing import Any

import pytest

from headgate.core.slo import Slo, parse_slo
from headgate.whatif import advice
from headgate.whatif.advice import sentence
from headgate.whatif.oracle import Point


def row(policy: str = "p", **changed: Any) -> dict[str, Any]:
    known = {
        "policy": policy, "success": 0.995, "success_worst": 0.99, "slots_mean": 2.5, "slots_most": 4,
        "changes_per_h": 3.0, "meets": True, "bound_kept_s": None,
    }  # fmt: skip
    return known | changed


SLO = parse_slo("mean < 1 s over 1 s")
MISSED: dict[str, Any] = {"success": 0.5, "success_worst": 0.25, "meets": False}


@pytest.mark.parametrize(
    ("success", "wanted"),
    [(1.0, "every window"), (0.999, "0.999 of windows"), (0.9, "0.9 of windows")],
)
def test_what_is_wanted_is_a_share_of_windows_or_every_one(success: float, wanted: str) -> None:
    slo = Slo("mean", 1.0, 1.0, success=success)
    assert sentence(slo, [row(**MISSED)]) == (
        f'No policy here keeps "{slo}" in {wanted}; p comes nearest, in 50.00% with 2.5 slots on the '
        "average: give it more slots."
    )


def test_the_nearest_of_those_that_miss_is_named_with_the_bound_that_it_keeps() -> None:
    rows = [
        row("few", **MISSED, slots_mean=1.0, bound_kept_s=3.0), row("more", **MISSED, slots_mean=2.0),
        row("worse", **(MISSED | {"success": 0.4})), row("none", success=None),
    ]  # fmt: skip
    assert sentence(SLO, rows, limit=lambda best: f"ask {best['policy']}") == (
        f'No policy here keeps "{SLO}" in 0.99 of windows; few comes nearest, in 50.00% with 1 slots on '
        'the average: it keeps "mean < 3 s over 1 s", or ask few.'
    )
    rows[0]["bound_kept_s"] = SLO.bound
    assert sentence(SLO, rows).endswith("on the average: give it more slots.")


def test_a_policy_whose_worst_key_group_misses_says_so() -> None:
    rows = [row(success=0.99, success_worst=0.5, meets=False)]
    assert "in 99.00%, of the worst key group's windows in 50.00%, with" in sentence(SLO, rows)
    rows = [row(success=0.99, success_worst=0.98)]
    assert "in 99.00% of windows, 98.00% of the worst key group's, with" in sentence(SLO, rows)


def test_the_fewest_slots_are_taken_and_of_as_many_the_fewest_changes() -> None:
    rows = [row("a", slots_mean=3.0), row("b"), row("c", changes_per_h=1.0), row("d", meets=False)]
    assert sentence(SLO, rows) == (
        f'Take c with up to 4 slots: it keeps "{SLO}" in 99.50% of windows with 2.5 slots on the average.'
    )
    assert sentence(SLO, [row(success=None)]) == "Nothing arrives, so any policy will do."


@pytest.mark.parametrize(
    ("constant", "batches", "fixed"),
    [(2, False, True), (2, True, False), (3, False, False), (None, False, False)],
)
def test_a_fixed_number_is_advised_where_it_is_much_less(
    constant: int | None, batches: bool, fixed: bool
) -> None:
    said = sentence(SLO, [row()], constant=constant, batches=batches)
    assert said.startswith("Take static(2): it keeps" if fixed else "Take p with up to 4 slots")
    if fixed:
        assert said.endswith(
            "with 2 slots; of the policies here p needs the fewest, 2.5 on the average."
        )


def test_fifteen_percent_more_than_a_fixed_number_are_no_reason_to_fix_it() -> None:
    assert sentence(SLO, [row(slots_mean=2.3)], constant=2).startswith("Take p")
    assert sentence(SLO, [row(slots_mean=2.31)], constant=2).startswith("Take static(2)")


def test_a_policy_is_set_beside_the_oracle_and_a_fixed_number() -> None:
    known = row(to_oracle=1.25, constant_slots=3)
    beside = ", 1.2 times what an oracle needs"
    assert sentence(SLO, [known]).endswith(f"{beside}; a fixed number that does as well is 3.")
    assert sentence(SLO, [known], batches=True).endswith(f"{beside} that has no batches.")


def test_the_oracle_never_needs_more_than_a_fixed_number_that_does_as_well() -> None:
    points = [Point(1.0, 1.0, 5.0), Point(0.9, 0.8, 2.0)]
    assert advice._fewest(points, Point(1.0, 1.0, 3.0), 1.0) == 3.0
    assert advice._fewest(points, Point(1.0, 1.0, 7.0), 1.0) == 5.0
    assert advice._fewest(points, Point(0.99, 1.0, 3.0), 1.0) == 5.0
    assert advice._plain(Point(0.1234567, float("nan"), 2.0)) == {
        "success": 0.12346, "worst": None, "slots": 2.0,
    }  # fmt: skip


def test_progress_is_told_with_the_seconds_since_it_began(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    times = iter([100.0, 103.4])
    monkeypatch.setattr("headgate.whatif.advice.time.monotonic", lambda: next(times))
    advice._progress()(2, 5)
    assert capsys.readouterr().err == "oracle: 2 of 5 searches, 3 s\n"
