"""Describes a scenario: the workload, its duration, and the changes on the way."""

from __future__ import annotations

import atexit
import contextlib
import dataclasses
import json
import os
import re
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from headgate.checkpoint.place import files_at
from headgate.control.registry import is_replica_policy, policy
from headgate.core.assignment import check_slots
from headgate.core.duration import LONGEST_S, parse_duration_s
from headgate.core.errors import CheckpointError, ConfigError
from headgate.core.formats import FILE_FORMATS
from headgate.core.input import (
    KEY_GROUPS_MAX,
    RATE_MAX,
    checked_path,
    checked_text,
    escaped,
    is_directory,
    open_regular,
    read_file,
    read_json,
    shown,
)
from headgate.core.size import bytes_or_size
from headgate.core.slo import parse_slo
from headgate.core.stores import store_url
from headgate.migration.registry import strategy
from headgate.scenario.places import absolute, written
from headgate.workloads.rates import parse_rate

RECORD = "scenario.json"
"""File in the checkpoint with the settings of ``headgate run``; Spark ignores it."""


_LEAST = 1e-6
_MOST = {"rate": RATE_MAX, "speed": 1e6, "duration_s": LONGEST_S, "slot_rate": RATE_MAX}
"""`_LEAST`: smallest value of all numbers of a scenario; `_MOST`: largest value of each."""

_NAME_MAX = 1000
OUTPUT_MODES = ("append", "update", "complete")
"""Spark's output modes."""

_FORMAT = re.compile(r"[A-Za-z_][\w.$-]{0,199}", re.ASCII)
_SCHEME = re.compile(r"(?!file:)[A-Za-z][A-Za-z0-9+.-]+:/")

DEMO = (
    "kafka-clicks",
    *(f"nexmark-q{number}" for number in range(9)),
    "sdsc",
    "stock-exchange",
    "word-count",
)
"""Workloads of the distribution headgate-demo; a checkpoint's record may name one of them."""

_REPLAYED = "sdsc"
"""Workload that plays a log at a speed; the demo's other workloads have a rate and a seed."""


@dataclass(frozen=True)
class Scenario:
    """Holds a workload, the way it is run, and the places of its results."""

    workload: str
    """Name of a built-in workload, or ``module:function`` for ``function(spark) -> DataFrame``."""
    rate: float | str | None = None
    """Records per second, > 0, or a rate function as `headgate.workloads.rates.parse_rate` reads it;
    None for the workload's own rate. Generated workloads only."""
    speed: float | None = None
    """Speed-up of a trace over its recorded speed, > 0; None for 1. Traces only."""
    duration_s: float = 60.0
    """How long the query runs after its first committed batch, in s; > 0."""
    slots: int = 2
    """Slots at the start; 1 to `key_groups`."""
    scale_at: tuple[tuple[float, int], ...] = ()
    """Changes as (s since the first committed batch, slots); each inside the duration."""
    key_groups: int = 128
    """Key groups per operator, fixed in the checkpoint; >= 1."""
    budget: str | None = None
    """Time budget of a slot per batch, such as ``800 ms``; None for no budget."""
    slo: tuple[str, ...] = ()
    """SLOs of the query, as `headgate.core.slo.parse_slo` reads them."""
    policy: str | None = None
    """Policy that decides about slots, such as ``streamswitch(0.2)``; None for the default."""
    advise: bool = False
    """Let the policy decide and change nothing."""
    slots_max: int | None = None
    """The most slots a policy may use; None for the writer's default."""
    slot_rate: float | None = None
    """Experiment: records that a slot serves per second of wall time, > 0; None for no limit."""
    migration: str | None = None
    """Strategy of changes of slots, such as ``subscale(per_host=4)``; None for the default."""
    floor: str | None = None
    """Experiment: latency floor, such as ``0 s``, in place of the measured floor."""
    memory_max: str | None = None
    """Most memory of a host that state may take, such as ``500 MB``; None for no limit."""
    real_time: bool = False
    """Run the query in real time, and not in micro-batches."""
    require_slo: bool = False
    """Count a missed SLO as a failure."""
    seed: int = 1
    """Seed of the load generator."""
    verify: bool = False
    """Compare the output with Spark's batch answer afterwards."""
    options: Mapping[str, Any] = field(default_factory=dict, repr=False)
    """Further arguments of the workload."""
    checkpoint: Path | None = None
    """Checkpoint; None for a new temporary directory."""
    output: Path | None = None
    """Directory of the output; None for a directory beside the checkpoint."""
    sink_format: str | None = None
    """Format of the output; None for the workload's own format, or parquet."""
    table: str | None = None
    """Table of the output; None for a directory, or for the sink that the workload names."""
    output_mode: str | None = None
    """append, update or complete; None for the workload's own mode."""
    arrival: str | None = None
    """Column with the time a record became available; None for the workload's own column, if any."""
    conf: Mapping[str, str] = field(default_factory=dict, repr=False)
    """Spark settings of the session; override headgate's settings."""

    def __post_init__(self) -> None:
        self._check_numbers()
        check_slots(self.slots, self.key_groups)
        for at_s, slots in self.scale_at:
            check_slots(slots, self.key_groups, f"scale_at {at_s:g} s: slots")
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
            check_slots(self.slots_max, self.key_groups, "slots_max")
        for slo in self.slo:
            parse_slo(slo)
        if self.migration is not None:
            strategy(self.migration)
        self._check_texts()
        if self.require_slo and not self.slo:
            msg = "an SLO is required but none is given; add --slo TEXT."
            raise ConfigError(msg)
        self._check_load()

    def _check_numbers(self) -> None:
        """Refuse numbers out of range."""
        for name, most in _MOST.items():
            value = getattr(self, name)
            if isinstance(value, str) and name == "rate":
                parse_rate(value)
            elif value is not None and not _LEAST <= value <= most:
                msg = f"{name}={value:g} is out of range; use a number above 0, {most:g} at most."
                raise ConfigError(msg)
        if not 1 <= self.key_groups <= KEY_GROUPS_MAX:
            msg = (
                f"key_groups={self.key_groups} is out of range; use 1 to {KEY_GROUPS_MAX}, 128 by "
                "default."
            )
            raise ConfigError(msg)
        if self.seed < 0:
            msg = f"seed={self.seed} is out of range; use 0 or more."
            raise ConfigError(msg)

    def _check_texts(self) -> None:
        """Refuse an impossible policy, size, column, format, table or output mode."""
        if self.policy is not None and not is_replica_policy(self.policy):
            policy(self.policy)
        if self.memory_max is not None:
            bytes_or_size(self.memory_max)
        if self.arrival is not None:
            _checked_name(self.arrival, "the column of --arrival")
        if self.sink_format is not None and not _FORMAT.fullmatch(self.sink_format):
            msg = f'format "{shown(self.sink_format, 60)}" is no name of one; use parquet.'
            raise ConfigError(msg)
        if self.table is not None:
            _checked_name(self.table, "the table of --table")
        if self.output_mode not in (None, *OUTPUT_MODES):
            msg = (
                f'output mode "{shown(str(self.output_mode), 60)}" is unknown; use '
                f"{', '.join(OUTPUT_MODES)}."
            )
            raise ConfigError(msg)

    def _check_load(self) -> None:
        """Refuse a rate or speed that the workload would ignore."""
        if self.rate is not None and (":" in self.workload or self.workload == _REPLAYED):
            msg = f'workload "{self.workload}" takes no rate; drop it, or pass --option NAME=VALUE.'
            raise ConfigError(msg)
        if self.speed is not None and self.workload != _REPLAYED:
            msg = (
                f'workload "{self.workload}" takes no speed; drop it, or pass --option NAME=VALUE.'
            )
            raise ConfigError(msg)

    def build_options(self) -> dict[str, Any]:
        """Return the arguments of the workload's build function."""
        values: dict[str, Any] = {}
        if self.workload in DEMO and self.workload != _REPLAYED:
            values["seed"] = self.seed
        if self.rate is not None:
            rate = self.rate
            whole = not isinstance(rate, str) and float(rate).is_integer()
            values["rate"] = int(rate) if whole else rate
        if self.speed is not None:
            values["speed"] = self.speed
        return {**values, **self.options}

    def placed(self) -> Scenario:
        """Return the scenario with absolute places of its checkpoint and its output."""
        checkpoint = self.checkpoint
        if checkpoint is None:
            name = re.sub(r"[^A-Za-z0-9_.-]", "-", self.workload)[:64]
            made = Path(tempfile.mkdtemp(prefix=f"headgate-{name}-"))
            atexit.register(_remove_if_empty, made)  # a refused run leaves it empty
            checkpoint = made / "checkpoint"
        on_store = store_url(checkpoint) is not None
        checkpoint = absolute(checkpoint)
        if not checkpoint.name:
            msg = f'"{checkpoint}" cannot be a checkpoint; name a directory of its own.'
            raise ConfigError(msg)
        if on_store and self.output is None and self.table is None:
            msg = (
                f"checkpoint {written(checkpoint)} has no directory beside it for the output; name one "
                "with --out."
            )
            raise ConfigError(msg)
        output = self.output or beside_checkpoint(checkpoint)
        return dataclasses.replace(self, checkpoint=checkpoint, output=output.absolute())

    def record(self) -> None:
        """Write the settings beside the checkpoint's state, for `recorded`.

        Only the checkpoint's owner may read the file, as with the journal.
        """
        assert self.checkpoint is not None, "placed() comes first"
        plain = {f.name: getattr(self, f.name) for f in dataclasses.fields(self)}
        plain |= {"options": dict(self.options), "conf": dict(self.conf)}
        text = json.dumps({k: str(v) if isinstance(v, Path) else v for k, v in plain.items()})
        if store_url(self.checkpoint) is not None:
            files_at(self.checkpoint).put(RECORD, f"{text}\n".encode())
            return
        flags = os.O_CREAT | os.O_WRONLY | os.O_TRUNC
        try:
            descriptor = open_regular(self.checkpoint / RECORD, flags)
        except OSError as error:
            msg = (
                f"{shown(self.checkpoint / RECORD)} cannot be written: {error.strerror}; remove it."
            )
            raise CheckpointError(msg) from error
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(f"{text}\n")


def _remove_if_empty(directory: Path) -> None:
    with contextlib.suppress(OSError):
        directory.rmdir()


def _checked_name(name: str, what: str) -> None:
    """Refuse a name that is empty, too long, or has control characters."""
    checked_text(name, what, _NAME_MAX)
    if not name.strip() or escaped(name) != name:
        msg = f'{what} is "{shown(name, 60)}", which is no name; write one, or leave it out.'
        raise ConfigError(msg)


def check_place(place: Path | None, *, or_store: bool = False) -> None:
    """Refuse a directory that cannot be made, before Spark starts.

    With `or_store`, the place may be on an object store, which the query's start checks.
    """
    if place is None:
        return
    checked_path(place)
    if or_store and store_url(place) is not None:
        return
    if _SCHEME.match(str(place)):
        msg = (
            f'"{shown(written(place))}" is not a local path; only POSIX paths work in this version.'
        )
        raise ConfigError(msg)
    above = next(
        path for path in (place.absolute(), *place.absolute().parents) if os.path.exists(path)
    )
    if not is_directory(above):
        msg = f'"{shown(above)}" is not a directory; name another place than "{shown(place)}".'
        raise ConfigError(msg)
    if not os.access(above, os.W_OK | os.X_OK):
        msg = f'"{shown(above)}" may not be written to; name another place than "{shown(place)}".'
        raise ConfigError(msg)


def recorded(checkpoint: Path) -> Scenario:
    """Return the scenario that ``headgate run`` recorded in a checkpoint, with few of its values.

    Takes the output and the fields in `_COMPARED`; leaves out policies, Spark's settings and the rest.
    Raises `ConfigError`: the checkpoint has no record, or a record of another release.
    """
    record = _record(checkpoint)
    try:
        _check_kinds(record)
        values = {name: record[name] for name in _COMPARED if name in record}
        output = Path(record["output"])
        return Scenario(**values, output=output, checkpoint=absolute(checkpoint))
    except (ConfigError, ValueError, TypeError, KeyError, AttributeError) as error:
        raise _records_nothing(checkpoint) from error


_COMPARED = (
    "workload", "rate", "speed", "seed", "options", "sink_format", "table", "output_mode",
)  # fmt: skip
"""Fields of a record that a comparison needs besides the place of the output."""

_TEXTS = ("rate", "columns", "duration", "longest", "time_column")
"""Options of the demo's workloads whose texts are neither a place nor code; sources check them."""

_BESIDE = "kafka-clicks"
"""Workload that starts a program on data beside the checkpoint."""


def _record(checkpoint: Path) -> dict[str, Any]:
    """Return the record of a checkpoint; raises as `recorded`."""
    try:
        if store_url(checkpoint) is None:
            raw = read_file(checkpoint / RECORD, "the record", follow=False)
        else:
            raw = files_at(checkpoint).get(RECORD)
        record = read_json(raw, "the record")
    except (ConfigError, CheckpointError) as error:
        raise _records_nothing(checkpoint) from error
    if not isinstance(record, dict) or set(record) - {f.name for f in dataclasses.fields(Scenario)}:
        raise _records_nothing(checkpoint)
    return record


def _records_nothing(checkpoint: Path) -> ConfigError:
    msg = f"checkpoint {shown(checkpoint)} records no workload; name it, and its output with --out."
    return ConfigError(msg)


def _check_kinds(record: dict[str, Any]) -> None:
    """Raise TypeError if a value of a record is not of the type that a scenario has."""
    kinds: dict[str, tuple[type, ...]] = {
        **dict.fromkeys(("workload", "output"), (str,)),
        **dict.fromkeys(("key_groups", "seed", "slots"), (int,)),
        **dict.fromkeys(("options", "conf"), (dict,)),
        **dict.fromkeys(("slo", "scale_at"), (list,)),
        **dict.fromkeys(("speed", "slot_rate"), (int, float, type(None))),
        "duration_s": (int, float),
        "rate": (int, float, str, type(None)),
        "slots_max": (int, type(None)),
    }
    for name, value in record.items():
        text = (str, bool, type(None))  # types of all other fields
        if not isinstance(value, kinds.get(name, text)):
            raise TypeError(name)


def to_verify(
    checkpoint: Path,
    *,
    workload: str | None,
    output: Path | None,
    options: Mapping[str, Any],
    conf: Mapping[str, str] | None = None,
    sink_format: str | None = None,
    table: str | None = None,
    output_mode: str | None = None,
) -> Scenario:
    """Return the scenario to compare: the typed values, and the record if no workload is typed.

    A checkpoint may come from somebody else, so its record only chooses a workload of the demo and
    sets the workload's numbers; the user types code, places, tables and Spark settings. Raises
    `ConfigError`: no workload is recorded or typed, or the user must type a recorded value.
    """
    where = absolute(checked_path(checkpoint))
    typed: dict[str, Any] = {
        "options": options,
        "output": output,
        "conf": conf or {},
        "sink_format": sink_format,
        "table": table,
        "output_mode": output_mode,
    }
    if workload is not None:
        return Scenario(workload, checkpoint=where, **typed)
    base = recorded(where)
    typed["options"] = {**base.options, **options}
    typed["sink_format"] = sink_format or (base.sink_format if table is None else None)
    typed["output_mode"] = output_mode or base.output_mode
    _refuse_choices(base, options, typed)
    if sink_format is None and typed["sink_format"] not in (None, *FILE_FORMATS):
        wrote = f"wrote {shown(base.sink_format, 60)}"
        raise _to_be_typed(written(where), wrote, f"headgate verify {written(where)} --format NAME")
    if output is None and table is None:
        typed["output"] = beside_checkpoint(where)
    return dataclasses.replace(base, **typed)


def _refuse_choices(base: Scenario, options: Mapping[str, Any], typed: Mapping[str, Any]) -> None:
    """Refuse values of a record that the user must type."""
    assert base.checkpoint is not None
    assert base.output is not None
    place = written(base.checkpoint)
    wanted = f"headgate verify {shown(place)}"
    name = shown(base.workload, 80)
    if base.workload not in DEMO:
        raise _to_be_typed(place, f"calls {name}", f"{wanted} {name}, and its --option")
    if base.workload == _BESIDE:
        raise _to_be_typed(place, "starts a Kafka broker on what lies there", f"{wanted} {name}")
    for option, value in base.options.items():
        plain = isinstance(value, int | float) or (isinstance(value, str) and option in _TEXTS)
        if option not in options and not plain:
            named = shown(option, 60)
            raise _to_be_typed(place, f"has option {named}", f"{wanted} --option {named}=VALUE")
    if typed["output"] is not None or typed["table"] is not None:
        return
    if base.table is not None:
        raise _to_be_typed(place, f"wrote table {shown(base.table, 80)}", f"{wanted} --table NAME")
    beside = beside_checkpoint(base.checkpoint)
    if store_url(base.checkpoint) is not None or os.path.abspath(base.output) != str(beside):
        raise _to_be_typed(place, f"wrote to {shown(base.output)}", f"{wanted} --out DIR")


def _to_be_typed(place: str, does: str, words: str) -> ConfigError:
    msg = (
        f"the run that checkpoint {shown(place)} records {does}, and headgate takes no code, place or "
        f"setting from a checkpoint; type it: {words}."
    )
    return ConfigError(msg)


def settings_not_taken(scenario: Scenario) -> list[str]:
    """Return the keys of Spark settings that a checkpoint records and the user did not type."""
    assert scenario.checkpoint is not None
    try:
        conf = _record(scenario.checkpoint).get("conf")
    except ConfigError:
        return []
    settings = conf if isinstance(conf, dict) else {}
    return [shown(key, 80) for key in sorted(map(str, settings)) if key not in scenario.conf]


def beside_checkpoint(checkpoint: Path) -> Path:
    """Return the default directory of a run's output."""
    return absolute(checkpoint).with_name(f"{checkpoint.name}-output")
