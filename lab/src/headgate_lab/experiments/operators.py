"""Runs ``headgate bench operators``: compares each operator with alternatives, part by part.

A part is a module with a parameter class and ``run(**parameters) -> dict``. Parts that need Spark alone
are in `headgate_lab.bench`; those that also measure processes of this machine are in
`headgate_lab.experiments.stretch`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from typing import Any

from headgate.core.errors import ConfigError, nearest
from headgate_lab.bench import aggregate, joins, memory, processor, windows
from headgate_lab.bench.common import machine, progress
from headgate_lab.experiments.stretch import counts, operator6, scalejoin


@dataclass(frozen=True)
class Part:
    """Describes one comparison.

    Attributes
    ----------
    run : callable      From parameters to a result of plain JSON.
    parameters : type   The class of its parameters, whose fields are their names.
    """

    run: Callable[..., dict[str, Any]]
    parameters: type

    def known(self) -> set[str]:
        """Return the names of its parameters."""
        return {field.name for field in fields(self.parameters)}


PARTS: Mapping[str, Part] = {
    "processor": Part(processor.run, aggregate.AggregateParameters),
    "windows": Part(windows.run, windows.WindowsParameters),
    "join": Part(joins.run, joins.JoinParameters),
    "counts": Part(counts.run, counts.CountsParameters),
    "operator6": Part(operator6.run, operator6.Operator6Parameters),
    "scalejoin": Part(scalejoin.run, scalejoin.ScaleJoinParameters),
    "memory": Part(memory.run, memory.MemoryParameters),
}


def run(only: str | None = None, **given: Any) -> dict[str, Any]:
    """Run all parts, or some.

    Parameters
    ----------
    only : str or None
        Names out of `PARTS`, separated by commas.
    **given
        Parameters; each goes to the parts that know it.

    Returns
    -------
    dict
        What each part returned, under its name; ``targets``: all that were judged; ``failed``.

    Raises
    ------
    ConfigError    There is no such part, or none of them knows a parameter.
    WrongAnswer    An answer is not the exact one.
    """
    chosen = chosen_parts(only, given)
    found: dict[str, Any] = {"benchmark": "operators", "machine": machine()}
    for name, part in chosen.items():
        progress(f"--- {name}")
        begun_s = time.monotonic()
        known = {key: value for key, value in given.items() if key in part.known()}
        found[name] = part.run(**known) | {"took_s": round(time.monotonic() - begun_s, 1)}
    return found | {
        "targets": [one for name in chosen for one in judged(name, found[name])],
        "failed": [f"{name}: {who}" for name in chosen for who in found[name].get("failed", ())],
    }


def chosen_parts(only: str | None, given: Mapping[str, Any]) -> dict[str, Part]:
    """Return the parts to run, in the order of `PARTS`; raises ConfigError as `run` does."""
    names = list(PARTS) if only is None else only.split(",")
    for name in names:
        if name not in PARTS:
            msg = f'no part "{name}"{nearest(name, PARTS)}; there are {", ".join(PARTS)}.'
            raise ConfigError(msg)
    chosen = {name: part for name, part in PARTS.items() if name in names}
    known = set().union(*(part.known() for part in chosen.values()))
    for key in given:
        if key not in known:
            msg = f'{", ".join(chosen)} has no parameter "{key}"{nearest(key, known)}'
            raise ConfigError(msg)
    return chosen


def judged(part: str, result: Any) -> list[dict[str, Any]]:
    """Return every entry of a part's result that has been compared with a target."""
    if isinstance(result, Mapping):
        if result.get("met") is not None:
            return [{"part": part, **result}]
        result = list(result.values())
    if isinstance(result, list):
        return [one for value in result for one in judged(part, value)]
    return []
