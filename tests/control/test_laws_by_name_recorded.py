"""Laws by the texts that name them: parameters, or the refusal; and what a move makes of a split."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
from control_views import view

from headgate.control import registry
from headgate.control.decision import ChangeKind
from headgate.control.fleet import registry as fleets
from headgate.control.slots.strategies import UnitStrategy, change_of, view_after
from headgate.core.assignment import Assignment
from headgate.core.errors import HeadgateError

Recorded = Callable[[str, Iterable[str]], None]

LAWS = (
    "static", "static(8)", "static(n=3)", "static(0)", "static(x)", "static(1.5)", "streamswitch",
    "streamswitch(0.2)", "streamswitch(epsilon=0.99)", "streamswitch(1.0)", "streamswitch(-0.1)",
    "streamswitch(0.2, steps=1)", "streamswitch(0.2, steps=1024)", "streamswitch(0.2, steps=1025)",
    "streamswitch(0.2, hysteresis=3, cooldown_s=30, per_minute=2)", "streamswitch(hysteresis=0)",
    "streamswitch(cooldown_s=-1)", "streamswitch(per_minute=0)", "streamswitch(per_minute=1.5)",
    "threshold", "threshold(0.9, 0.7, 0.45)", "threshold(0.5, 0.7)", "threshold(2)", "unified",
    "unified(0.1)", "unified(0.1, 1, 0.9)", "unified(goal=0)", "unified(goal=1)", "unified(goal=1.1)",
    "unified(clear=0)", "unified(even=2)", "unifed", "psps", "psps(1)", "psps(blend=2)",
    "psps(season=100000)", "psps(season=100001)", "psps(blend=1, season=24)", "unified-pools",
    "unified-pools(0.5)", "unified-pools(0)", "unified(1e400)", "unified(nan)", "static(9999999999999)",
)  # fmt: skip


def shown(value: Any, depth: int = 3) -> str:
    """Return an object as its kind and its plain values."""
    if dataclasses.is_dataclass(value) or isinstance(value, int | float | str | bool | None):
        return re.sub(r" at 0x[0-9a-f]+", "", repr(value))
    if depth == 0 or not hasattr(value, "__dict__") or callable(value):
        return type(value).__name__
    parts = {key: shown(part, depth - 1) for key, part in sorted(vars(value).items())}
    plain = {
        key: part for key, part in parts.items() if not part.startswith(("dict", "list", "set"))
    }
    return f"{type(value).__name__}({', '.join(f'{key}={part}' for key, part in plain.items())})"


def told(do: Callable[[], Any]) -> str:
    try:
        return shown(do())
    except HeadgateError as error:
        return f"{type(error).__name__}: {error}"


def test_laws_are_made_of_texts_as_recorded(recorded: Recorded) -> None:
    lines: list[str] = []
    for text in LAWS:
        lines.append(f"{text}: {told(lambda text=text: registry.policy(text))}")
        pools = registry.is_replica_policy(text)
        lines.append(f"    own {registry.is_own(text)}, pools {pools}")
        if pools:
            lines.append(f"    {told(lambda text=text: registry.replica_policy(text))}")
    lines.append(f"{registry.names()} {registry.same_name('static(3)', ' static')}")
    for round_s in (10.0, 2.5):
        for observe_s in (None, 0.0, 7.0):
            lines.append(shown(fleets.in_rounds(round_s, observe_s=observe_s)))
            lines.append(shown(fleets.unified(round_s, observe_s=observe_s)._p))
    lines.append(shown(fleets.in_rounds(1.0, blacklist_s=5.0)))
    lines.append(shown(fleets.unified(1.0, settle_s=5.0)._p))
    for name, goal in (
        ("henge", "total"),
        ("henge", "max-min"),
        ("unified", "total"),
        ("unified", "max-min"),
        ("heng", "total"),
        ("zzz", "total"),
        ("henge", "tot"),
    ):
        made = told(lambda n=name, g=goal: fleets.fleet_policy(n, 10.0, observe_s=3.0, goal=g).name)
        lines.append(f"{name} {goal}: {made}")
    recorded("names", lines)


def test_a_move_makes_of_a_split_what_is_recorded(recorded: Recorded) -> None:
    lines: list[str] = []
    split = {0: (0, 2)}
    operator = view(
        [8.0, 4.0, 2.0, 1.0, 1.0], [20.0, 10.0, 30.0],
        assignment=Assignment((0, 1, 2, 0, 1), 3, 4, split), latency_s=[0.1, 0.3, 0.2],
    )  # fmt: skip
    moves = [
        UnitStrategy(ChangeKind.SCALE_OUT, (3,), 0, 3, (0, 1, 2, None), np.zeros(4)),
        UnitStrategy(ChangeKind.SCALE_IN, (1, 4), 1, 0, (0, 2), np.zeros(2)),
        UnitStrategy(ChangeKind.SCALE_IN, (2,), 2, 1, (0, 1), np.zeros(2)),
        UnitStrategy(ChangeKind.SCALE_IN, (0, 3), 0, 2, (1, 2), np.zeros(2)),
        UnitStrategy(ChangeKind.BALANCE, (3,), 0, 1, (0, 1, 2), np.zeros(3)),
        UnitStrategy(ChangeKind.BALANCE, (), 0, 1, (0, 1, 2), np.zeros(3), {0: (0, 1)}),
        UnitStrategy(ChangeKind.BALANCE, (), 0, 1, (0, 1, 2), np.zeros(3), {}),
    ]
    for move in moves:
        try:
            change, after = change_of(operator, move), view_after(operator, move)
        except HeadgateError as error:
            lines.append(f"{move.kind}: {error}")
            continue
        lines.append(f"{move.kind}: {change}")
        lines.append(f"    {after.assignment} {after.slot_ids} {after.latency_s.tolist()}")
        lines.append(f"    {after.service_rate.tolist()} {after.utilisation.tolist()}")
    recorded("moves", lines)
