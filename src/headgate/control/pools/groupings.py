"""Parses the grouping of each stage that runs on a pool of replicas, and lists the known groupings."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from headgate.core.errors import ConfigError, nearest

GROUPINGS = {
    "round-robin": "one replica after another",
    "shuffle": "any replica at random",
    "load-aware": "the replica of lowest load, by waiting events (PSPS, algorithm 1)",
    "as-printed": "the replica of lowest load, by what it processed in the last interval, as PSPS has it",
    "least-work": "the replica that would be done with it first, by what waits and its own speed",
}
"""The replica that gets the next row, by name of the grouping."""

DEFAULT = "load-aware"


@dataclass(frozen=True)
class Groupings:
    """Holds the grouping of each stage of a query."""

    default: str = DEFAULT
    """Grouping of the stages without an entry in `stages`."""
    stages: Mapping[str, str] = field(default_factory=dict)
    """Name of the stage -> its grouping."""

    @classmethod
    def parse(cls, text: str) -> Groupings:
        """Return the groupings of a text: ``least-work``, or ``round-robin, map-1: shuffle``.

        Raises `ConfigError`: a name is unknown, or a stage is named twice or has no name.
        """
        default, stages = None, {}
        for part in text.split(","):
            stage, colon, name = part.rpartition(":")
            stage, name = stage.strip(), _known(name.strip().lower())
            if stage and stage not in stages:
                stages[stage] = name
            elif not colon and default is None:
                default = name
            else:
                msg = f'"{text}" names a grouping twice, or no stage; use "shuffle, map-1: least-work".'
                raise ConfigError(msg)
        return cls(default or DEFAULT, stages)

    def of(self, stage: str) -> str:
        """Return the grouping of a stage."""
        return self.stages.get(stage, self.default)

    def check(self, stages: Iterable[str]) -> None:
        """Raise ConfigError where a stage with a grouping is not among `stages`."""
        known = list(stages)
        for stage in self.stages:
            if stage not in known:
                msg = f'headgate.grouping names a stage "{stage}", which is not one of {known}'
                raise ConfigError(f"{msg}{nearest(stage, known) or '.'}")


def _known(name: str) -> str:
    if name not in GROUPINGS:
        msg = f'unknown grouping "{name}"{nearest(name, GROUPINGS) or "."}'
        raise ConfigError(msg)
    return name
