"""Measures on Spark how latency recovers from random jumps of the load: STRETCH's Q5, shortened.

The job is the stock exchange under random phases of constant load. Each slot serves a fixed rate. Each of
two controllers of STRETCH runs once. A phase begins with the batch in which its first record arrives.
"""

from __future__ import annotations

import math
import sys
import tempfile
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from headgate.control.registry import policy
from headgate.journal.reader import JOURNAL_PLACES, read
from headgate.journal.schema import Batch
from headgate.workloads.rates import StepRate
from headgate_lab.bench.common import (
    child,
    machine,
    parameters,
    progress,
    require,
    spark_env,
)

POLICIES = ("predictive(0.8, 0.75, 0.7)", "threshold(0.9, 0.7, 0.45)")
"""STRETCH 8.5: the narrow band of Q5, and the wide band of Q4."""

_START_S = 180.0
"""Time limit of a run beyond its load, in seconds: for the JVM, the first batch and the end."""


@dataclass(frozen=True)
class PhasesParameters:
    """Holds the parameters of `run`."""

    seconds: float = 240.0
    """Length of each run; > 0. The paper's is 20 minutes."""

    phase_s_min: float = 20.0
    """Shortest phase; > 0. The paper's is 100 s."""

    phase_s_max: float = 60.0
    """Longest phase; >= `phase_s_min`. The paper's is 300 s."""

    rate_min: float = 100.0
    """Least load in records per second; > 0. The paper's is 500."""

    rate_max: float = 1_600.0
    """Greatest load; >= `rate_min`. The paper's is 8,000: the same ratio of 16."""

    slot_rate: float = 200.0
    """Records per second that a slot serves; > 0."""

    slots: int = 4
    """Slots at the start; >= 1."""

    slots_max: int = 12
    """The most slots; >= `slots`. By default, 1,600 records/s are two thirds of their capacity."""

    recovered_ms: float = 2_000.0
    """A batch with a larger mean latency counts as not recovered; > 0. Chosen: three batches."""

    seed: int = 1
    """Seed of phases and records; >= 0."""

    def __post_init__(self) -> None:
        for name in ("seconds", "phase_s_min", "rate_min", "slot_rate", "recovered_ms"):
            value = getattr(self, name)
            require(value > 0, f"{name}={value:g} of phases is out of range; use more than 0.")
        for least, most in (("phase_s_min", "phase_s_max"), ("rate_min", "rate_max")):
            text = f"{most} of phases is below {least}; use at least {getattr(self, least):g}."
            require(getattr(self, least) <= getattr(self, most), text)
        fits = 1 <= self.slots <= self.slots_max
        require(fits, f"slots={self.slots} of phases is out of range; use 1 to {self.slots_max}.")


def run(**given: Any) -> dict[str, Any]:
    """Run both controllers, one after the other, on the same phases.

    Parameters
    ----------
    **given
        Fields of `PhasesParameters`.

    Returns
    -------
    dict
        ``policies`` (by name: ``latency_ms_mean``, ``recover_s_longest``, ``slots_mean``,
        ``reconfigurations``, and ``phases``, the rows of `phase_rows`), ``parameters``, ``machine``.
    """
    chosen = parameters(PhasesParameters, given)
    rate = random_phases(chosen)
    found = {}
    with tempfile.TemporaryDirectory(prefix="headgate-phases-") as work:
        for number, name in enumerate(POLICIES):
            policy(name)
            progress(f"{name}, {chosen.seconds:g} s of {len(rate.steps)} phases")
            found[name] = _one(chosen, name, rate, Path(work) / str(number))
    return {"policies": found, "parameters": asdict(chosen), "machine": machine()}


def random_phases(chosen: PhasesParameters) -> StepRate:
    """Return phases of random length and load; the end of the run may cut the last one short."""
    draw = np.random.default_rng(chosen.seed)
    steps, start_s = [], 0.0
    while start_s < chosen.seconds:
        steps.append((start_s, float(draw.uniform(chosen.rate_min, chosen.rate_max))))
        start_s += float(draw.uniform(chosen.phase_s_min, chosen.phase_s_max))
    return StepRate(tuple(steps))


def as_text(rate: StepRate) -> str:
    """Return the rate as a text for `parse_rate`."""
    (_, first), *rest = rate.steps
    steps = [f"{first:.17g}", *(f"{at_s:.17g}s={per_s:.17g}" for at_s, per_s in rest)]
    return f"steps({', '.join(steps)})"


def phase_rows(
    batches: Sequence[Batch], rate: StepRate, recovered_ms: float
) -> list[dict[str, Any]]:
    """Return a row of measurements for each phase that has a batch.

    Parameters
    ----------
    batches : sequence of Batch
        By step, from the first record on.

    Returns
    -------
    list of dict
        ``rate_per_s``, ``latency_ms_mean`` and ``latency_ms_peak`` (largest mean of a batch); both None
        if no record was completed; ``recover_s`` (from the phase's first batch to the end of its last
        batch above `recovered_ms`; 0 if there is none), ``slots_first``, ``slots_last``.
    """
    arrived = np.cumsum([batch.arrived for batch in batches])
    starts = [int(np.searchsorted(arrived, rate.count(at_s), "right")) for at_s, _ in rate.steps]
    rows = []
    for (start, end), (_, per_s) in zip(pairwise([*starts, len(batches)]), rate.steps, strict=True):
        inside = batches[start:end]
        if inside:
            rows.append({"rate_per_s": round(per_s), **_phase(inside, recovered_ms)})
    return rows


def _phase(batches: Sequence[Batch], recovered_ms: float) -> dict[str, Any]:
    known = [(b, b.latency_ms.mean) for b in batches if b.latency_ms is not None]
    above = [b.at_ms for b, mean_ms in known if mean_ms > recovered_ms]
    began_ms = batches[0].at_ms - batches[0].duration_ms
    means_ms = [mean_ms for _, mean_ms in known]
    return {
        "latency_ms_mean": _mean_ms(batches),
        "latency_ms_peak": round(max(means_ms), 1) if means_ms else None,
        "recover_s": round((above[-1] - began_ms) / 1e3, 1) if above else 0.0,
        "slots_first": batches[0].slots,
        "slots_last": batches[-1].slots,
    }


def _mean_ms(batches: Iterable[Batch]) -> float | None:
    """Return the mean latency of all records completed in some batches."""
    total_ms, count = 0.0, 0
    for batch in batches:
        completed = sum(number for _, number in batch.histogram)
        if batch.latency_ms is not None:
            total_ms += batch.latency_ms.mean * completed
            count += completed
    return round(total_ms / count, 1) if count else None


def _one(chosen: PhasesParameters, name: str, rate: StepRate, checkpoint: Path) -> dict[str, Any]:
    """Run one controller in its own session."""
    command = [sys.executable, "-m", "headgate.cli", "run", "stock-exchange", "--json"]
    command += ["--policy", name, "--slots", str(chosen.slots)]
    command += ["--slots-max", str(chosen.slots_max), "--slot-rate", f"{chosen.slot_rate:g}"]
    # These controllers look at load, not at the bound; an SLO makes headgate measure latencies.
    command += ["--slo", f"mean < {chosen.recovered_ms:g} ms over 1 s"]
    command += ["--duration", f"{math.ceil(chosen.seconds)}s", "--seed", str(chosen.seed)]
    command += ["--option", f"rate={as_text(rate)}", "--checkpoint", str(checkpoint)]
    result = child(command, spark_env(), chosen.seconds * 1.5 + _START_S)
    journal = next(p for place in JOURNAL_PLACES if (p := checkpoint / place).is_file())
    batches = [event for event in read(journal) if isinstance(event, Batch)]
    rows = phase_rows(batches, rate, chosen.recovered_ms)
    return {
        "latency_ms_mean": _mean_ms(batches),
        "recover_s_longest": max(row["recover_s"] for row in rows),
        "slots_mean": result["slots_mean"],
        "reconfigurations": sum(result["decisions"].values()),
        "phases": rows,
    }
