"""Whether a policy keeps a latency bound with fewer slots than its rivals: runs on Spark, in turns.

The stock exchange under a load that swings, with slots that each serve a fixed rate, so that more of
them than cores are meaningful. StreamSwitch runs first; *static* then gets the number of slots that
StreamSwitch had on average, rounded up, and *threshold* the same limits as StreamSwitch.
"""

from __future__ import annotations

import math
import sys
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from headgate.engines.spark.bench.common import (
    child,
    machine,
    parameters,
    progress,
    require,
    spark_env,
)

_START_S = 180.0
"""What a run may take beside its load: the JVM, the first batch, the end."""


@dataclass(frozen=True)
class SloParameters:
    """What `run` takes."""

    seconds: float = 300.0
    """Length of each run, from its first batch on; > 0."""

    slo: str = "mean < 1 s over 1 s"
    """The bound, for every key group."""

    rate: str = "sine(base=100, amplitude=650, period=60s)"
    """Orders per second: 100 to 1,400, mean 750. The stocks are as skewed as the paper's."""

    slot_rate: float = 200.0
    """Orders per second that a slot serves; > 0."""

    slots_max: int = 12
    """The most slots a policy may use; >= 1."""

    seed: int = 1
    """Of the load; >= 0."""

    def __post_init__(self) -> None:
        require(self.seconds > 0, f"seconds={self.seconds} of slo must be above 0.")
        require(self.slot_rate > 0, f"slot_rate={self.slot_rate} of slo must be above 0.")
        require(self.slots_max >= 1, f"slots_max={self.slots_max} of slo is out of range; use 1.")


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
        (whether StreamSwitch's success is above every rival's), ``parameters``, ``machine``.
    """
    chosen = parameters(SloParameters, given)
    with tempfile.TemporaryDirectory(prefix="headgate-slo-") as work:
        found = {"streamswitch": _one(chosen, "streamswitch", 2, Path(work))}
        same = min(chosen.slots_max, math.ceil(found["streamswitch"]["slots_mean"]))
        found[f"static({same})"] = _one(chosen, "static", same, Path(work))
        found["threshold"] = _one(chosen, "threshold", 2, Path(work))
    rivals = [figures["success"] for name, figures in found.items() if name != "streamswitch"]
    return {
        "policies": found,
        "ahead": found["streamswitch"]["success"] > max(rivals),
        "parameters": asdict(chosen),
        "machine": machine(),
    }


def _one(chosen: SloParameters, policy: str, slots: int, work: Path) -> dict[str, Any]:
    """Run one policy in a session of its own, starting with `slots`."""
    progress(f"{policy}, {slots} slots at the start, {chosen.seconds:g} s")
    command = [sys.executable, "-m", "headgate.cli", "run", "stock-exchange", "--json"]
    command += ["--policy", policy, "--slo", chosen.slo, "--duration", f"{chosen.seconds:g}s"]
    command += ["--slots", str(slots), "--slots-max", str(chosen.slots_max)]
    command += ["--slot-rate", f"{chosen.slot_rate:g}", "--seed", str(chosen.seed)]
    command += ["--option", f"rate={chosen.rate}", "--checkpoint", str(work / policy)]
    result = child(command, spark_env(), chosen.seconds * 1.5 + _START_S)
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
