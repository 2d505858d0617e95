"""A fleet of jobs in real time: what is granted takes effect between two epochs, the answers stay."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from real_time import Rows, totals, writer

import headgate as hg
from headgate.control.fleet.view import Action, FleetDecision, FleetView
from headgate.core.errors import ConfigError

pytestmark = pytest.mark.timeout(300)

WAIT_S = 90.0


class Script:
    """A fleet policy that grants what it is told."""

    name = "script"

    def __init__(self) -> None:
        self.wants: dict[str, dict[str, int]] = {}

    def decide(self, view: FleetView) -> FleetDecision:
        wants = {job: slots for job, slots in self.wants.items() if dict(view.slots[job]) != slots}
        return FleetDecision(Action.RECONFIGURATION, wants, "the test wants it", "script")


def wait_for(reached: Callable[[], bool], what: str) -> None:
    until_s = time.monotonic() + WAIT_S
    while not reached():
        assert time.monotonic() < until_s, what
        time.sleep(0.05)


def test_grants_take_effect_between_two_epochs(spark: SparkSession, tmp_path: Path) -> None:
    script, rows = Script(), {"first": Rows(), "second": Rows()}
    fleet = hg.Fleet(
        spark,
        4,
        policy=script,
        journal=tmp_path / "fleet.jsonl",
        round_s=0.5,
        actions_per_minute=1000,
    )
    for name, received in rows.items():
        made = writer(totals(rate=200)(spark), received, tmp_path / name, "update", slots=1)
        fleet.add(made.queryName(name).slo("mean < 5 s over 2 s").slots(max=3, start=1))

    def slots(name: str) -> int:
        (held,) = fleet.query(name)._slots.held().values()
        return held

    def grant(**wanted: int) -> None:
        operators = {name: next(iter(fleet.query(name)._slots.held())) for name in wanted}
        script.wants = {name: {operators[name]: n} for name, n in wanted.items()}
        wait_for(lambda: {n: slots(n) for n in wanted} == wanted, f"{wanted}")

    try:
        fleet.start()
        grant(first=3, second=1)
        grant(first=1, second=3)
        with pytest.raises(ConfigError, match="grant"):
            fleet.query("first").scale(3)
        seen = {name: len(received.steps) for name, received in rows.items()}
        wait_for(lambda: all(len(rows[n].steps) > seen[n] for n in rows), "epochs go on")
        fleet.set_budget(2)
        wait_for(lambda: slots("second") == 1, "what is too much is given back")
    finally:
        fleet.stop()
    for name, received in rows.items():
        found: dict[str, Any] = hg.verify(
            spark,
            totals(rate=200),
            checkpoint=str(tmp_path / name),
            output=received.last_by(spark, "k"),
            mode="update",
        )
        assert found["verified"], (name, found)
