"""Operators to decide about: plain ones for single tests, absurd ones for laws."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from hypothesis import strategies as st

from headgate.control.decision import Decision
from headgate.control.observation import Observation, OperatorView
from headgate.core.assignment import Assignment, spread


def shown(value: Any) -> str:
    """Return a value as text, numbers to six digits: the last ones are the machine's."""
    if isinstance(value, float):
        return f"{round(value, 9) + 0.0:.6g}"
    if isinstance(value, np.ndarray):
        return shown(value.tolist())
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{key}: {shown(part)}" for key, part in value.items()) + "}"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(shown, value)) + "]"
    return str(value)


def view(
    rates: Sequence[float],
    mu: float | Sequence[float] = 100.0,
    *,
    slots: int = 2,
    latency_s: float | Sequence[float] = 0.05,
    backlog: float = 0.0,
    **changed: Any,
) -> OperatorView:
    """Key groups with `rates`, evenly spread over `slots` slots of rate `mu`."""
    assignment = changed.pop("assignment", None) or spread(slots, len(rates))
    slots, groups = assignment.slots, len(rates)
    made = OperatorView(
        assignment=assignment,
        slot_ids=tuple(range(slots)),
        latency_s=np.broadcast_to(np.asarray(latency_s, dtype=float), slots).copy(),
        group_latency_s=np.zeros(groups),
        group_rate=np.asarray(rates, dtype=float),
        service_rate=np.broadcast_to(np.asarray(mu, dtype=float), slots).copy(),
        utilisation=np.full(slots, 0.5),
        backlog=np.full(groups, backlog),
        bound_s=1.0,
        window_s=1.0,
        alert_s=0.1,
        slots_max=groups,
    )
    return replace(made, **changed)


def seen(time_s: float, parents: dict[str, tuple[str, ...]] | None = None, **views: Any) -> Any:
    """Return an observation of operators given by name."""
    return Observation(time_s, views, parents or {})


def check(observation: Observation, decision: Decision) -> None:
    """Fail unless every change is one that an engine could carry out."""
    for name, change in decision.changes.items():
        now = observation.operators[name]
        new = change.assignment
        assert new.key_groups == now.assignment.key_groups
        assert new.epoch == now.assignment.epoch + 1
        assert len(change.survivors) == new.slots
        kept = [old for old in change.survivors if old is not None]
        assert len(set(kept)) == len(kept)
        assert all(0 <= old < now.slots for old in kept)
        assert new.slots != now.slots or new.slot_of != now.assignment.slot_of
        if new.slots > now.slots:
            assert new.slots <= max(now.slots_max, now.slots_min)
        if new.slots < now.slots:
            assert new.slots >= min(now.slots_min, now.slots_max)


_COUNTS = (0.0, 5e-324, 1e-9, 0.5, 3.0, 40.0, 100.0, 1e3, 1e15)
_LATENCIES = (float("nan"), 0.0, 1e-6, 0.05, 0.5, 2.0, 1e6)


@st.composite
def absurd_views(draw: st.DrawFn) -> OperatorView:
    """Anything that is valid by `OperatorView`: idle, drowned, unknown, uneven, empty slots.

    Arrays come from a seed: drawn number by number they would take nearly all the time.
    """
    groups = draw(st.integers(1, 12))
    slots = draw(st.integers(1, groups))
    random = np.random.default_rng(draw(st.integers(0, 2**32)))
    bound_s = draw(st.sampled_from([0.001, 1.0, 100.0]))
    slots_min = draw(st.integers(1, groups + 2))

    def some(values: Sequence[float], size: int) -> Any:
        # Half of them vary by a little, half are as they stand.
        chosen = random.choice(random.choice(values, 3), size)
        return chosen * np.where(random.random() < 0.5, 1.0, random.uniform(0.5, 1.0, size))

    return OperatorView(
        assignment=Assignment(tuple(random.integers(0, slots, groups).tolist()), slots, 3),
        slot_ids=tuple(range(10, 10 + slots)),
        latency_s=some(_LATENCIES, slots),
        group_latency_s=some(_LATENCIES, groups),
        group_rate=some(_COUNTS, groups),
        service_rate=some(_COUNTS, slots),
        utilisation=some([0.0, 0.1, 0.9, 2.0], slots),
        backlog=some(_COUNTS, groups),
        bound_s=bound_s,
        window_s=1.0,
        alert_s=bound_s * draw(st.sampled_from([0.001, 0.1, 0.999])),
        floor_s=draw(st.sampled_from([0.0, 0.4, 5.0])),
        slots_min=slots_min,
        slots_max=draw(st.integers(slots_min, slots_min + 5)),
    )
