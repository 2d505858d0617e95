"""Tests on Spark that a policy keeps a latency bound with fewer slots than its rivals, one after another.

The job is the stock exchange under a load that swings. Each slot serves a fixed rate, so that there can
be more slots than cores. All policies begin with the same number of slots, except ``static``: it gets the
mean number of slots of the first policy, rounded up.
"""

from __future__ import annotations

import math
import re
import sys
import tempfile
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from headgate.control.registry import policy
from headgate_lab.bench.common import (
    child,
    machine,
    parameters,
    progress,
    require,
    spark_env,
)

_START_S = 180.0
"""Time limit of a run beyond its load, in seconds: for the JVM, the first batch and the end."""

_CALIBRATION, _CALIBRATION_S = "calibration", 150.0
"""Name and length in seconds of the run that measures the cost of batches with few and many slots, as
input of a simulation."""

_OUTSIDE_BRACKETS = re.compile(r",\s*(?![^(]*\))")


@dataclass(frozen=True)
class SloParameters:
    """Holds the parameters of `run`."""

    seconds: float = 300.0
    """Length of each run, from its first batch on; > 0."""

    slo: str = "mean < 1 s over 1 s"
    """The bound, for every key group."""

    policies: str = "streamswitch, streamswitch(steps=8), static, threshold, drs, drs-lb"
    """Policies; the first one is compared with the others."""

    rate: str = "sine(base=100, amplitude=650, period=100s)"
    """Orders per second: 100 to 1,400, mean 750. The stocks are as skewed as the paper's."""

    slot_rate: float = 200.0
    """Orders per second that a slot serves; > 0."""

    slots: int = 8
    """Slots at the start; >= 1."""

    slots_max: int = 12
    """The most slots a policy may use; >= `slots`."""

    keep: str = ""
    """Directory in which the checkpoints, one per policy, remain afterwards; empty: they are deleted."""

    seed: int = 1
    """Seed of the load; >= 0."""

    def __post_init__(self) -> None:
        require(self.seconds > 0, f"seconds={self.seconds} of slo must be above 0.")
        require(self.slot_rate > 0, f"slot_rate={self.slot_rate} of slo must be above 0.")
        fits = 1 <= self.slots <= self.slots_max
        require(fits, f"slots={self.slots} of slo is out of range; use 1 to {self.slots_max}.")
        require(bool(self.names()), "policies of slo names none; use streamswitch, static.")
        for name in self.names():
            policy(name)  # refuse an unknown name before an hour of runs

    def names(self) -> list[str]:
        """Return the policies, each once."""
        return split_policies(self.policies)


def split_policies(text: str) -> list[str]:
    """Return the policies of a text separated by commas, each once."""
    found = (name.strip() for name in _OUTSIDE_BRACKETS.split(text))
    return list(dict.fromkeys(name for name in found if name))


def run(**given: Any) -> dict[str, Any]:
    """Run the policies one after the other.

    Parameters
    ----------
    **given
        Fields of `SloParameters`.

    Returns
    -------
    dict
        ``policies`` (by name: ``success``, the mean over the key groups of the share of windows
        within the bound, from true latencies; ``success_worst``, of the worst group; ``slots_mean``
        over time; ``decisions`` by kind; ``latency_ms``; ``floor_ms``; ``records``), ``ahead``
        (by name of the rival, whether the first policy's success is above the rival's),
        ``parameters``, ``machine``.
    """
    chosen = parameters(SloParameters, given)
    found: dict[str, dict[str, Any]] = {}
    with ExitStack() as stack:
        work = chosen.keep or stack.enter_context(
            tempfile.TemporaryDirectory(prefix="headgate-slo-")
        )
        _calibrate(chosen, Path(work) / _CALIBRATION)
        for name in chosen.names():
            slots = chosen.slots
            if name == "static" and found:
                first = next(iter(found.values()))
                slots = min(chosen.slots_max, math.ceil(first["slots_mean"]))
            label = f"static({slots})" if name == "static" else name
            found[label] = _one(chosen, name, slots, Path(work) / _file_name(label))
    return {
        "policies": found,
        "ahead": _ahead(found),
        "parameters": asdict(chosen),
        "machine": machine(),
    }


def _ahead(found: Mapping[str, Mapping[str, Any]]) -> dict[str, bool]:
    first, *rivals = found
    return {rival: found[first]["success"] > found[rival]["success"] for rival in rivals}


def _file_name(label: str) -> str:
    return re.sub(r"[^\w.-]+", "-", label).strip("-")


def _calibrate(chosen: SloParameters, checkpoint: Path) -> None:
    """Run with several numbers of slots, which change from 60 s on, with another load and seed."""
    progress(f"{_CALIBRATION}, {_CALIBRATION_S:g} s")
    most = chosen.slots_max
    shares = {60: 1 / 6, 75: 1.0, 90: 5 / 12, 105: 3 / 4, 120: 1 / 4, 135: 7 / 12}
    changes = {at_s: max(1, round(most * share)) for at_s, share in shares.items()}
    load = chosen.slot_rate * most / 4
    command = [f"--scale-at={at_s}s={slots}" for at_s, slots in changes.items()]
    command += ["--policy", "static", "--duration", f"{_CALIBRATION_S:g}s"]
    command += ["--seed", str(chosen.seed + 1)]
    command += ["--option", f"rate=sine(base={load / 3:g}, amplitude={load * 2 / 3:g}, period=50s)"]
    _run(chosen, command, chosen.slots, checkpoint, _CALIBRATION_S)


def _one(chosen: SloParameters, name: str, slots: int, checkpoint: Path) -> dict[str, Any]:
    """Run one policy in its own session, starting with `slots`."""
    progress(f"{name}, {slots} slots at the start, {chosen.seconds:g} s")
    command = ["--policy", name, "--duration", f"{chosen.seconds:g}s"]
    command += ["--seed", str(chosen.seed), "--option", f"rate={chosen.rate}"]
    result = _run(chosen, command, slots, checkpoint, chosen.seconds)
    slo = result["slo"]
    return {
        "success": slo["success"],
        "success_worst": slo["success_worst"],
        "slots_mean": result["slots_mean"],
        "decisions": result["decisions"],
        "latency_ms": result["latency_ms"],
        "floor_ms": slo["floor_ms"],
        "records": result["records"],
    }


def _run(
    chosen: SloParameters, own: list[str], slots: int, checkpoint: Path, seconds: float
) -> dict[str, Any]:
    command = [sys.executable, "-m", "headgate.cli", "run", "stock-exchange", "--json"]
    command += ["--slo", chosen.slo, "--slots", str(slots), "--slots-max", str(chosen.slots_max)]
    command += ["--slot-rate", f"{chosen.slot_rate:g}", "--checkpoint", str(checkpoint), *own]
    return child(command, spark_env(), seconds * 1.5 + _START_S)
