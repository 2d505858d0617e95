"""Tests what the first cycles of a loop take for the time between batches, when the floor is measured."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from fake_engine import DELTA_S, FakeEngine

from headgate.control.registry import policy
from headgate.control.sample import Sample
from headgate.loop.loop import ControlLoop
from headgate.loop.settings import OperatorSettings

SETTINGS = OperatorSettings(bound_s=9.0, window_s=2 * DELTA_S, slots_max=8)


class Batches(FakeEngine):
    """One key group whose records are completed 0.5 s after they came; tells ten time slots at once."""

    def __init__(self) -> None:
        super().__init__(groups=1, slots=1)
        self.tick = 0

    def collect(self) -> dict[str, list[Sample]]:
        samples = []
        for _ in range(10):
            self.tick += 1
            arrived, completed = (np.full(1, float(max(self.tick - ago, 0))) for ago in (0, 5))
            samples.append(
                Sample(self.tick, self.now, self.ids, arrived, completed, np.full(1, 0.001))
            )
        return {"op": samples}


def loop_of(engine: Batches) -> ControlLoop:
    settings = replace(SETTINGS, floor_s=None)
    return ControlLoop(policy("static"), engine, engine, engine, {"op": settings}, delta_s=DELTA_S)


@pytest.mark.parametrize(
    ("cycles_s", "floor_s"),
    [
        ((3.0,), 0.0),  # nothing says yet how long a batch is: half a second may be a queue
        ((3.0, 3.2), 0.0),
        ((3.0, 4.0), 0.5),
        ((0.0, 1.0, 1.1), 0.5),
    ],
)
def test_a_floor_is_learnt_once_the_time_between_two_cycles_is_known(
    cycles_s: tuple[float, ...], floor_s: float
) -> None:
    loop = loop_of(Batches())
    for time_s in cycles_s:
        loop.cycle(time_s)
    assert loop.floor_s("op") == pytest.approx(floor_s)
