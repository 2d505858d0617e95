"""Arguments of a writer's methods at their bounds, and faults that tests inject, as recorded."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from told import told

from headgate.core.errors import EngineError, HeadgateError
from headgate.core.slo import parse_slo
from headgate.spark.job import faults
from headgate.spark.job.faults import POINTS, SlotFaults, crash_point
from headgate.spark.settings import arguments as args

Recorded = Callable[[str, Iterable[str]], None]


class Own:
    """A policy of one's own."""

    name = "own"

    def decide(self, observation: Any) -> None:
        """Decide nothing."""

    def applied(self, operator: str, change: Any, took_s: float) -> None:
        """Take note of nothing."""

    def slot_failed(self, operator: str, slot_id: int) -> None:
        """Take note of nothing."""


async def awaited(frame: Any, batch: int) -> None:
    """Do nothing, later."""


def yielding(frame: Any, batch: int) -> Iterable[int]:
    yield batch


def called(frame: Any, batch: int) -> None:
    """Do nothing."""


def test_arguments_at_their_bounds(recorded: Recorded) -> None:
    numbers: list[Any] = [0, 1, -1, True, 1.0, "1", None]
    tries: dict[str, list[tuple[Any, ...]]] = {
        "note": [("reason", "why"), ("reason", 3), ("reason", "a\0b")],
        "text": [("name", one, "a text") for one in ("x", "", " ", None, 3)],
        "whole": [("n", one, 1) for one in numbers] + [("n", 2, 2), ("n", 1, 2, "for two")],
        "check_policy": [
            ("streamswitch", {}), ("streamswitch", {"a": 1, "b": 0.5}), ("x", {"a": True}),
            ("x", {"a": "1"}), (7, {}), (Own(), {}), (Own(), {"a": 1}),
        ],
        "check_slots": [
            (1, "auto", "auto"), (0, "auto", "auto"), (1, 1, 1), (2, 1, "auto"), (2, 3, 1),
            (1, 3, 4), (1, 3, 2), (1, 0, "auto"), (1, "many", "auto"), (3, "auto", 2),
        ],
        "check_key_groups": [(0,), (1,), (32767,), (32768,), (True,), ("8",)],
        "check_budget": [(None,), ("auto",), ("800 ms",), ("",), (800,), ("soon",), ("0 s",)],
        "slo": [("mean < 1 s over 1 s",), (parse_slo("p99 < 2 s over 1 min"),), ("",), (1,)],
        "check_function": [(called,), (awaited,), (yielding,), (7,), (print,)],
        "policy_of": [("static", {}), ("statik", {}), ("streamswitch", {"nothing": 1.0})],
        "call": [("a", {}), ("a", {"b": 1.0, "c": 0.25}), ("a", {"b": 1e-7})],
    }  # fmt: skip
    lines = []
    for name, given in tries.items():
        for values in given:
            shown = ", ".join(getattr(v, "__name__", None) or str(v) for v in values)
            if any(isinstance(value, Own) for value in values):
                shown = "a policy of one's own" + str(values[1:])
            said = told(lambda n=name, v=values: getattr(args, n)(*v))
            said = said.split(" at 0x")[0].split(" object")[0]
            lines.append(f"{name}({shown}): {said}".encode("unicode_escape").decode())
    recorded("arguments", lines)


def test_a_fault_strikes_in_its_slot_its_steps_and_its_attempts(
    tmp_path: Path, recorded: Recorded, monkeypatch: pytest.MonkeyPatch
) -> None:
    slept: list[float] = []
    clock = SimpleNamespace(sleep=slept.append, time=lambda: 1.0, monotonic=lambda: 0.0)
    monkeypatch.setattr(faults, "time", clock)
    stopped: list[float] = []
    monkeypatch.setattr(faults, "_stop_self", stopped.append)
    trace = str(tmp_path / "trace")
    given: list[dict[str, Any]] = [
        {"kind": "raise", "slot": 0, "step": 2, "trace": trace},
        {
            "kind": "pause",
            "slot": 1,
            "from_step": 2,
            "attempts": 2,
            "until": "woken",
            "trace": trace,
        },
        {"kind": "pause", "slot": 2, "groups": 2, "until": "awake"},
        {"kind": "slow", "slot": 1, "us_per_row": 1000},
    ]
    lines = []
    for slot in range(4):
        for step in (1, 2, 3):
            for attempt in (1, 2, 3):
                made = SlotFaults(given, slot, step, attempt)
                done = list[str]()
                for group in (5, 6, 7) if made.on_group else ():
                    try:
                        made.on_group(group)
                    except EngineError as error:
                        done.append(f"{error} {error.transient}")
                made.dawdle(4)
                if done or slept or stopped:
                    lines.append(f"{(slot, step, attempt)}: {done} {slept} {stopped}")
                slept.clear()
                stopped.clear()
    for line in Path(trace).read_text().splitlines():
        noted = json.loads(line)
        noted.pop("pid")
        lines.append(str(noted))
    recorded("faults", lines)


def test_a_fault_may_wait_for_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    there = tmp_path / "there"
    clock = SimpleNamespace(sleep=lambda _: there.touch(), monotonic=lambda: 0.0)
    monkeypatch.setattr(faults, "time", clock)
    strike = SlotFaults([{"kind": "raise", "slot": 0, "after": str(there)}], 0, 1, 1).on_group
    strike(5)
    with pytest.raises(EngineError):
        strike(6)
    assert there.exists()


def test_a_driver_dies_where_it_is_told_to(
    recorded: Recorded, monkeypatch: pytest.MonkeyPatch
) -> None:
    died: list[str] = []
    monkeypatch.setattr(faults, "_die", died.append)
    lines = []
    for wanted in (
        "", f"{POINTS[0]}:2", f"{POINTS[-1]}:0:driver", f"{POINTS[1]}:1:group", "random:7",
        "random:8:driver", "nowhere:1", f"{POINTS[0]}:x", f"{POINTS[0]}:1:me", POINTS[0],
    ):  # fmt: skip
        monkeypatch.setenv("HEADGATE_CRASH", wanted)
        monkeypatch.setattr(faults, "_passed", 0)
        found = []
        try:
            for step in range(12):
                for point in POINTS:
                    crash_point(point, step)
                    if died:
                        found.append(f"{point} {step} {died.pop()}")
        except HeadgateError as error:
            found.append(f"{type(error).__name__}: {error}")
        lines.append(f"{wanted}: {found}")
    recorded("crash_points", lines)
