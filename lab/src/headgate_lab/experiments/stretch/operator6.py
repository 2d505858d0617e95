"""Runs part `operator6` of ``bench operators``: it forwards all records and keeps nothing."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from headgate_lab.bench.common import parameters, progress, require
from headgate_lab.experiments.stretch import fig07


@dataclass(frozen=True)
class Operator6Parameters:
    """Holds the parameters of `run`."""

    records: int = 300_000
    """Of each of the two sources."""

    slots_max: int = 4
    """Slots are 1, 2, 4 ... up to this."""

    def __post_init__(self) -> None:
        require(min(self.records, self.slots_max) >= 1, "records and slots_max must be >= 1")


def run(**given: Any) -> dict[str, Any]:
    """Return throughput and latency for 1 to n slots, shared and copied: figure 7's rows.

    Parameters
    ----------
    **given
        Fields of `Operator6Parameters`.

    Raises
    ------
    ConfigError    A parameter is unknown or out of range.
    """
    asked = parameters(Operator6Parameters, given)
    counts = [1 << bit for bit in range(asked.slots_max.bit_length())]
    found = fig07.measure(counts, records=asked.records)
    for row in found["rows"]:
        progress(
            f"{row['readers']} slots: {row['shared_per_s']} records/s, {row['ratio']} x copied"
        )
    return {"benchmark": "operator6", "parameters": asdict(asked), **found}
