"""A scenario: what is run, for how long, with which changes on the way."""

from __future__ import annotations

import dataclasses
import json
import math
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from headgate.core.assignment import check_slots
from headgate.core.duration import parse_duration_s
from headgate.core.errors import ConfigError
from headgate.core.slo import parse_slo
from headgate.migration.registry import strategy
from headgate.workloads.rates import parse_rate

RECORD = "scenario.json"
"""File in the checkpoint with the settings of ``headgate run``; Spark ignores it."""


GENERATED = ("nexmark", "stock-exchange", "word-count")
"""How the names of workloads begin whose records are made from a rate and a seed."""


@dataclass(frozen=True)
class Scenario:
    """A workload, how it is run, and where it leaves its results."""

    workload: str
    """Name of a built-in workload, or ``module:function`` for ``function(spark) -> DataFrame``."""

    rate: float | str | None = None
    """Records per second, > 0, or a rate function as `headgate.workloads.rates.parse_rate` reads it;
    None for the workload's own. Generated workloads only."""

    speed: float | None = None
    """How many times faster than recorded a trace is played, > 0; None for 1. Traces only."""

    duration_s: float = 60.0
    """How long the query runs after its first committed batch, in s; > 0."""

    slots: int = 2
    """Slots at the start; 1 to `key_groups`."""

    scale_at: tuple[tuple[float, int], ...] = ()
    """Changes as (s since the first committed batch, slots); each inside the duration."""

    key_groups: int = 128
    """Key groups per operator, fixed in the checkpoint; >= 1."""

    budget: str | None = None
    """Time budget of a slot per batch, such as ``800 ms``; None for none."""

    slo: tuple[str, ...] = ()
    """What the query must achieve; see `headgate.core.slo.parse_slo`."""

    policy: str | None = None
    """Who decides about slots, as ``streamswitch(0.2)``; None for the default."""

    advise: bool = False
    """Let the policy decide and change nothing."""

    slots_max: int | None = None
    """The most slots a policy may use; None for the writer's default."""

    slot_rate: float | None = None
    """Experiment: records that a slot serves per second of wall time, > 0; None for no limit."""

    migration: str | None = None
    """How a change of slots is carried out, as ``subscale(per_host=4)``; None for the default."""

    floor: str | None = None
    """Experiment: the latency floor, such as ``0 s``, in place of the measured one."""

    require_slo: bool = False
    """Count a missed SLO as a failure."""

    seed: int = 1
    """Seed of the load generator."""

    verify: bool = False
    """Compare the output with Spark's batch answer afterwards."""

    options: Mapping[str, Any] = field(default_factory=dict)
    """Further arguments of the workload."""

    checkpoint: Path | None = None
    """Checkpoint; None for a new temporary directory."""

    output: Path | None = None
    """Directory of the output; None for one beside the checkpoint."""

    sink_format: str | None = None
    """Format of the output; None for the workload's own, or parquet."""

    def __post_init__(self) -> None:
        for name in ("rate", "speed", "duration_s", "slot_rate"):
            value = getattr(self, name)
            if isinstance(value, str):
                parse_rate(value)
            elif value is not None and not (value > 0 and math.isfinite(value)):
                msg = f"{name}={value:g} is out of range; use a number above 0."
                raise ConfigError(msg)
        if self.key_groups < 1:
            msg = f"key_groups={self.key_groups} is out of range; use 1 or more, 128 by default."
            raise ConfigError(msg)
        check_slots(self.slots, self.key_groups)
        for at_s, slots in self.scale_at:
            check_slots(slots, self.key_groups)
            if not 0 <= at_s < self.duration_s:
                msg = (
                    f"scale_at {at_s:g} s is outside the run of {self.duration_s:g} s; "
                    "use an earlier time or a longer duration."
                )
                raise ConfigError(msg)
        if self.budget is not None:
            parse_duration_s(self.budget)
        if self.floor is not None:
            parse_duration_s(self.floor, zero=True)
        if self.slots_max is not None:
            check_slots(self.slots_max, self.key_groups)
        for slo in self.slo:
            parse_slo(slo)
        if self.migration is not None:
            strategy(self.migration)
        if self.require_slo and not self.slo:
            msg = "an SLO is required but none is given; add --slo TEXT."
            raise ConfigError(msg)
        self._check_load()

    def _check_load(self) -> None:
        """Refuse a rate or speed that the workload would ignore."""
        if self.rate is not None and not self.workload.startswith(GENERATED):
            msg = f'workload "{self.workload}" takes no rate; drop it, or pass --option NAME=VALUE.'
            raise ConfigError(msg)
        if self.speed is not None and self.workload != "sdsc":
            msg = (
                f'workload "{self.workload}" takes no speed; drop it, or pass --option NAME=VALUE.'
            )
            raise ConfigError(msg)

    def build_options(self) -> dict[str, Any]:
        """Return the arguments of the workload's build function."""
        given: dict[str, Any] = {}
        if self.workload.startswith(GENERATED):
            given["seed"] = self.seed
        if self.rate is not None:
            rate = self.rate
            whole = not isinstance(rate, str) and float(rate).is_integer()
            given["rate"] = int(rate) if whole else rate
        if self.speed is not None:
            given["speed"] = self.speed
        return {**given, **self.options}

    def placed(self) -> Scenario:
        """Return the scenario with its checkpoint and output decided."""
        checkpoint = self.checkpoint
        if checkpoint is None:
            name = self.workload.replace(":", "-").replace("/", "-")
            checkpoint = Path(tempfile.mkdtemp(prefix=f"headgate-{name}-")) / "checkpoint"
        output = self.output or checkpoint.with_name(f"{checkpoint.name}-output")
        return dataclasses.replace(self, checkpoint=checkpoint.absolute(), output=output.absolute())

    def record(self) -> None:
        """Write the settings beside the checkpoint's state, for `recorded`.

        The checkpoint's owner alone may read them, as with the journal.
        """
        assert self.checkpoint is not None, "placed() comes first"
        plain = {f.name: getattr(self, f.name) for f in dataclasses.fields(self)}
        plain["options"] = dict(self.options)
        text = json.dumps({k: str(v) if isinstance(v, Path) else v for k, v in plain.items()})
        file = self.checkpoint / RECORD
        file.touch(mode=0o600)
        file.write_text(text + "\n", encoding="utf-8")


def recorded(checkpoint: Path) -> Scenario:
    """Return the scenario that ``headgate run`` recorded in a checkpoint.

    Raises
    ------
    ConfigError
        Nothing is recorded there, or by another release.
    """
    try:
        kept = json.loads((checkpoint / RECORD).read_text(encoding="utf-8"))
        kept["scale_at"] = tuple((s, n) for s, n in kept["scale_at"])
        kept["output"] = Path(kept["output"])
        kept["slo"] = tuple(kept.get("slo", ()))
        return Scenario(**{**kept, "checkpoint": checkpoint.absolute()})
    except (OSError, ValueError, TypeError, KeyError) as error:
        msg = f"checkpoint {checkpoint} records no workload; name it, and its output with --out."
        raise ConfigError(msg) from error


def to_verify(
    checkpoint: Path,
    *,
    workload: str | None,
    output: Path | None,
    options: Mapping[str, Any],
) -> Scenario:
    """Return the scenario to compare: as recorded, or as named where `workload` is given."""
    if workload is None:
        base = recorded(checkpoint)
        merged = {**base.options, **options}
        return dataclasses.replace(base, options=merged, output=output or base.output)
    where = checkpoint.absolute()
    return Scenario(workload, options=options, checkpoint=where, output=output)
