"""How drawn runs compare with what would have been best: scores, regrets and sentences as recorded."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict
from typing import Any

import numpy as np
import pytest
from sim_jobs import NAME

from headgate.control.registry import policy
from headgate.core.slo import parse_slo
from headgate.loop.settings import OperatorSettings
from headgate.whatif import advice
from headgate.whatif.model import OperatorModel, ServiceTime
from headgate.whatif.oracle import Constants, Load, oracle, whole
from headgate.whatif.simulation import SimulatedJob, Simulation
from headgate.workloads.arrivals import RecordedArrivals
from headgate_lab.sim.regret import regrets
from headgate_lab.sim.score import score

pytestmark = pytest.mark.usefixtures("one_process")

Recorded = Callable[[str, Iterable[str]], None]
GROUPS, UNTIL_S = 6, 40.0


def shown(value: Any) -> str:
    """Return a value as text, numbers to six digits: the last ones are the machine's."""
    if isinstance(value, float):
        return f"{round(value, 9) + 0.0:.6g}"
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{key}: {shown(part)}" for key, part in value.items()) + "}"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(shown, value)) + "]"
    return str(value)


def load_of(seed: int, **changed: Any) -> Load:
    """Return some thousand records: a wave, a burst, and costs of which few are large."""
    numbers = np.random.default_rng(seed)
    seconds = np.arange(0.0, UNTIL_S, 0.1)
    rate = 4.0 + 3.0 * np.sin(seconds / 4.0) + 9.0 * ((seconds > 20.0) & (seconds < 24.0))
    arrival_s = np.repeat(seconds, numbers.poisson(rate)) + 0.05
    count = len(arrival_s)
    groups = np.minimum(numbers.integers(0, 9, count), GROUPS - 1)
    return Load(
        arrival_s, groups, numbers.gamma(0.5, 0.08, count), GROUPS, UNTIL_S, slots_max=9, **changed
    )


LOADS: dict[str, dict[str, Any]] = {
    "mean": {}, "long windows": {"window_s": 5.0, "bound_s": 0.3, "from_s": 7.0},
    "p90": {"quantile": 0.9, "bound_s": 0.5, "window_s": 2.0},
}  # fmt: skip


@pytest.mark.parametrize("name", LOADS)
def test_scores_of_laws(name: str, recorded: Recorded) -> None:
    lines = []
    load = load_of(len(name), **LOADS[name])
    points, constants = oracle(load), Constants(load)
    lines += [
        f"mean {shown(load.slots_mean)}",
        *(f"oracle {shown(asdict(point))}" for point in points),
    ]
    for share in (0.5, 0.9, 0.99, 1.0):
        lines.append(
            f"{share:g}: {shown([asdict(constants.best(share)), asdict(whole(load, share))])}"
        )
    arrivals = RecordedArrivals(load.arrival_s, load.groups, load.demand_s, GROUPS)
    within_s = None if load.quantile is None else load.bound_s
    model = OperatorModel(ServiceTime(1.0), key_groups=GROUPS, slots=3, within_s=within_s)
    job = SimulatedJob({NAME: model}, {NAME: arrivals})
    for law in ("static(4)", "streamswitch(0.1)", "threshold"):
        settings = {NAME: OperatorSettings(load.bound_s, load.window_s, GROUPS)}
        result = Simulation(job, policy(law), settings, seed=3).run(UNTIL_S)
        lines.append(f"{law} {shown(asdict(score(result, NAME, load, points, constants)))}")
        lines.append(f"    {shown(asdict(regrets(result, NAME, load)))}")
    recorded(f"scores-{name.replace(' ', '-')}", lines)


def test_success_of_drawn_completions(recorded: Recorded) -> None:
    """Some records are never completed, some at once, some at the very end of a tick."""
    numbers, lines = np.random.default_rng(71), []
    for number in range(12):
        settings = LOADS[[*LOADS][number % 3]] | ({"window_s": 0.1} if number > 8 else {})
        load = load_of(number, **settings)
        load.arrival_s[:30] = np.repeat([0.0, 0.05, 0.1], 10)  # a tick and both its ends
        waits_s = numbers.choice([0.0, 0.1, 0.25, 0.95, 3.0, np.inf], len(load.arrival_s))
        found = load.success(load.arrival_s + waits_s)
        lines.append(f"{number} {shown([found.mean, found.worst])} {shown(found.rate.tolist())}")
    recorded("success-of-completions", lines)


def test_what_is_advised_of_drawn_rows(recorded: Recorded) -> None:
    dice, lines = random.Random(72), []
    for number in range(60):
        slo = parse_slo(dice.choice(["mean < 1 s over 1 s", "p99 < 500 ms over 5 s"]))
        rows = []
        for law in ("static(4)", "unified", "ds2")[: dice.randint(0, 3)]:
            success = dice.choice([None, 0.5, 0.98, 0.99, 0.995, 1.0])
            slots = dice.choice([2.0, 3.5, 4.61, 8.0])
            row = {
                "policy": law, "success": success, "slots_mean": slots, "slots_most": 9,
                "changes_per_h": dice.choice([0, 5]), "meets": (success or 0.0) >= slo.success,
                "success_worst": dice.choice([0.4, 1.0]), "to_oracle": dice.choice([None, 1.5]),
                "constant_slots": 5, "bound_kept_s": dice.choice([None, 0.5, 2.5]),
            }  # fmt: skip
            rows.append(row)
        constant, batches = dice.choice([None, 3, 4]), dice.random() < 0.3
        lines.append(f"{number} {advice.sentence(slo, rows, constant=constant, batches=batches)}")
    recorded("advice", lines)
