"""A rehearsal on made-up rows, ahead of a job, so that no batch waits for a compiler."""

from __future__ import annotations

from typing import Any

import pytest

from headgate.operators import serve as serving
from headgate.operators import warm as warming
from headgate.operators.spec import Aggregate, AggregateSpec, Kind, Leaf, Op, OutputMode, TimeKey
from headgate.operators.step import Served

COUNT = Aggregate(Op.COUNT, (Leaf(Kind.INTEGER),))


def test_a_window_is_filled_in_one_step_and_comes_out_in_the_next(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    steps: list[Served] = []

    def noted(*given: Any) -> Served:
        steps.append(serving.serve(*given))
        return steps[-1]

    monkeypatch.setattr(warming, "serve", noted)
    key = (Leaf(Kind.BYTES),)
    warming.warm(AggregateSpec(key, TimeKey(10, 10), (COUNT,), OutputMode.APPEND))
    assert [step.served_records for step in steps] == [2, 2]
    assert steps[0].output.num_rows == 0
    assert steps[1].output.num_rows > 0
