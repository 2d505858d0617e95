"""Runs ``headgate bench tuple-buffer``: figure 7 with free parameters."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

from headgate.core.errors import ConfigError, nearest
from headgate_lab.experiments.stretch import fig07


@dataclass(frozen=True)
class TupleBufferParameters:
    """Holds the parameters that ``--option`` sets."""

    records: int = 1_000_000
    """Of each of the two sources; ``--count``."""

    readers: str = "1,2,4,8"
    """Numbers of reader processes, separated by commas."""

    @property
    def reader_counts(self) -> tuple[int, ...]:
        """`readers` as numbers."""
        try:
            counts = tuple(int(text) for text in str(self.readers).split(","))
        except ValueError:
            counts = ()
        if not counts or min(counts) < 1:
            msg = f'readers="{self.readers}" are no numbers of processes; write them as 1,2,4.'
            raise ConfigError(msg)
        return counts


def run(**given: Any) -> dict[str, Any]:
    """Return what figure 7 returns, for the parameters given.

    Raises
    ------
    ConfigError    A parameter is unknown or out of range.
    """
    known = [field.name for field in fields(TupleBufferParameters)]
    for name in given:
        if name not in known:
            msg = f'bench tuple-buffer has no parameter "{name}"' + (
                nearest(name, known) or f"; known: {', '.join(known)}."
            )
            raise ConfigError(msg)
    chosen = TupleBufferParameters(**given)
    return fig07.measure(chosen.reader_counts, records=chosen.records)
