"""Reads the description of a fleet: a TOML file as typed values, checked without a cluster."""

from __future__ import annotations

import dataclasses
import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from headgate.control import registry
from headgate.control.fleet import registry as fleet_registry
from headgate.core import formats
from headgate.core.duration import parse_duration_s
from headgate.core.errors import ConfigError, nearest
from headgate.core.input import RATE_MAX, checked_path, read_file, read_toml, shown, whole
from headgate.core.installed import SINKS, installed
from headgate.core.intents import utility_of
from headgate.core.slo import parse_slo
from headgate.core.utility import Custom, Piecewise, Shape, Utility, shape_named
from headgate.scenario.fleet_schedule import BudgetStep, budget_steps
from headgate.scenario.spark import call_user, user_function

_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")
_VARIABLE = "HEADGATE__FLEET__"
_SLOTS_MAX = 10**6
_ACTIONS_MAX = 10**4
_PRIORITY_MAX = 1e9
_POINTS_MAX = 100
_POINT_MAX = 1e12
_DESCRIPTION_BYTES_MAX = 1 << 20
_FORMAT = re.compile(r"[A-Za-z_][\w.$-]{0,199}", re.ASCII)
_MODES = ("append", "update", "complete")
Made = TypeVar("Made")


@dataclass(frozen=True)
class Slots:
    """Holds the range of slots for each operator of a job."""

    min: int = 1
    """Fewest slots; >= 1."""
    max: int | None = None
    """Most slots; at least `min`. None for the number of key groups."""
    start: int = 1
    """Slots at the start; `min` to `max`."""

    def __post_init__(self) -> None:
        most = self.start if self.max is None else self.max
        if not 1 <= self.min <= self.start <= most:
            msg = (
                f"slots min={self.min}, start={self.start}, max={most} are not "
                "1 <= min <= start <= max."
            )
            raise ConfigError(msg)


@dataclass(frozen=True)
class FleetSettings:
    """Holds the table ``[fleet]``."""

    slots: int | str = "auto"
    """Budget of all jobs together; auto is twice the cores that Spark has granted."""
    round: str = "10 s"
    """Time between two decisions."""
    max_actions_per_minute: int = 6
    """Most actions within a minute; >= 1."""
    cooldown: str = ""
    """Time without decisions after an action; empty for no such time."""
    observe: str = ""
    """Time for which a new fleet is observed without decisions; empty for 90 rounds."""
    hang: str = "60 s"
    """Time of a job's batch after which the fleet decides nothing about the job."""
    policy: str = "henge"
    """Policy of the fleet: henge, unified, or a policy of an installed distribution."""
    goal: str = "total"
    """What Henge maximises: total or max-min."""
    budget: tuple[BudgetStep, ...] = ()
    """Changes of the budget: tables ``[[fleet.budget]]`` with ``at`` and ``slots``."""

    def __post_init__(self) -> None:
        fits = isinstance(self.slots, int) and 1 <= self.slots <= _SLOTS_MAX
        if self.slots != "auto" and not fits:
            value = shown(repr(self.slots), 60)
            msg = f'fleet slots={value} is out of range; use 1 to {_SLOTS_MAX:,}, or "auto".'
            raise ConfigError(msg)
        if not 1 <= self.max_actions_per_minute <= _ACTIONS_MAX:
            msg = (
                f"max_actions_per_minute={self.max_actions_per_minute} is out of range; use 1 to "
                f"{_ACTIONS_MAX}."
            )
            raise ConfigError(msg)
        fleet_registry.check(self.policy, self.goal)
        for text in filter(None, (self.round, self.cooldown, self.observe, self.hang)):
            parse_duration_s(text)


@dataclass(frozen=True)
class JobSettings:
    """Holds a table ``[jobs.NAME]``; ``[defaults]`` has its keys but `query`, and `checkpoint_root`."""

    query: str
    """A built-in workload, or ``module:function`` for ``function(spark, **options) -> DataFrame``."""
    slo: tuple[str, ...] = ()
    """SLOs of the job; several make a hybrid SLO."""
    priority: float = 1.0
    """The job's utility when the SLO is met; > 0."""
    utility: str | Piecewise = "knee"
    """Shape of the utility when the SLO is missed: knee, linear, step, lognormal,
    ``module:function``, or points ``[[value, share], ...]`` with straight lines between them."""
    sink: Mapping[str, Any] = field(default_factory=dict, repr=False)
    """``format``, ``outputMode``, and options of the sink, such as ``path``."""
    checkpoint: str = ""
    """Checkpoint of the job; empty for a directory of its name below `checkpoint_root`."""
    slots: Slots = field(default_factory=Slots)
    """Range of the job's slots."""
    trigger: Mapping[str, Any] = field(default_factory=dict)
    """Arguments of ``DataStreamWriter.trigger``: processingTime or realTime."""
    options: Mapping[str, Any] = field(default_factory=dict, repr=False)
    """Arguments of the query's function."""
    key_groups: int = 128
    """Key groups per operator, fixed in the checkpoint."""
    slot_rate: float | None = None
    """Experiment: records that a slot serves per second."""
    policy: str = ""
    """Policy that uses the slots that the fleet grants: ``streamswitch(0.2)``, or ``psps`` for pools
    of replicas; empty if the fleet's policy decides alone."""
    interval: str = ""
    """Time between two decisions about pools of replicas; empty for 10 s."""

    def __post_init__(self) -> None:
        if not self.slo:
            msg = 'there is no SLO; add slo = "mean < 1 s over 1 s".'
            raise ConfigError(msg)
        if len(self.trigger) > 1 or set(self.trigger) - {"processingTime", "realTime"}:
            msg = f"trigger {sorted(self.trigger)} is not for a fleet; use processingTime, or realTime."
            raise ConfigError(msg)
        for kind, text in self.trigger.items():
            if not isinstance(text, str):
                msg = f'trigger {kind}={text!r} is not text; write "1 second".'
                raise ConfigError(msg)
            parse_duration_s(text, zero=True)
        if not self.priority <= _PRIORITY_MAX:  # also true of NaN
            msg = f"priority is {self.priority:g}; use a number above 0, {_PRIORITY_MAX:g} at most."
            raise ConfigError(msg)
        self._check_sink()
        if "table" in self.sink:
            msg = "a table is not a sink of a fleet yet; give format and path."
            raise ConfigError(msg)
        if not 1 <= self.key_groups < 2**15:
            msg = f"key_groups={self.key_groups} is out of range; use 1 to {2**15 - 1}."
            raise ConfigError(msg)
        for name, count in (("start", self.slots.start), ("max", self.slots_max)):
            if count > self.key_groups:
                msg = f"slots {name}={count} exceeds {self.key_groups} key groups; use fewer."
                raise ConfigError(msg)
        if self.slot_rate is not None and not 0.0 < self.slot_rate <= RATE_MAX:
            msg = f"slot_rate={self.slot_rate:g} is out of range; use a number above 0."
            raise ConfigError(msg)
        for place in filter(None, (self.checkpoint, self.sink.get("path"))):
            checked_path(place)
        self._check_policy()
        call_user(str(self.utility), self.worth, "say what a missed SLO is worth")

    def _check_policy(self) -> None:
        """Refuse an unknown policy, and an interval without a policy over pools of replicas."""
        if self.pools:
            registry.replica_policy(self.policy)
        elif self.policy:
            registry.policy(self.policy)
        if self.interval and not self.pools:
            msg = 'interval is for pools of replicas only; leave it out, or use policy = "psps".'
            raise ConfigError(msg)
        if self.interval:
            parse_duration_s(self.interval)

    def _check_sink(self) -> None:
        """Refuse a wrong format, mode or option of the sink, with a shorter message than Spark's."""
        kind = self.sink.get("format", formats.FILE_FORMATS[0])
        if not isinstance(kind, str) or not _FORMAT.fullmatch(kind):
            msg = f"sink format={shown(repr(kind), 60)} is no name of a format; use parquet."
            raise ConfigError(msg)
        known = (*formats.KNOWN, *installed(SINKS))
        if "." not in kind and kind.lower() not in known:
            others = (
                f"; known: {', '.join(known)}, or write the name of its class, such as "
                f"org.example.{kind}."
            )
            msg = f'there is no sink "{kind}"{nearest(kind.lower(), known) or others}'
            raise ConfigError(msg)
        mode = self.sink.get("outputMode", "append")
        if mode not in _MODES:
            msg = f"sink outputMode={shown(repr(mode), 60)} is unknown; use {', '.join(_MODES)}."
            raise ConfigError(msg)
        for key, value in self.sink.items():
            if not isinstance(value, str | int | float | bool):
                msg = f"sink {shown(key, 60)}={shown(repr(value), 60)} is not text or a number."
                raise ConfigError(msg)
        path = self.sink.get("path", "")
        if not isinstance(path, str):
            msg = f"sink path={shown(repr(path), 60)} is not text; name a directory."
            raise ConfigError(msg)

    @property
    def pools(self) -> bool:
        """Return whether the job runs on pools of replicas."""
        return registry.is_replica_policy(self.policy)

    @property
    def slots_max(self) -> int:
        """The most slots of an operator."""
        return self.key_groups if self.slots.max is None else self.slots.max

    def worth(self) -> Utility:
        """Return the job's utility, from its intents, priority and shape."""
        slos = [parse_slo(text) for text in self.slo]
        return utility_of(slos, self.priority, self.shape())

    def shape(self) -> Shape:
        """Return the shape of the job's utility."""
        if isinstance(self.utility, Piecewise):
            return self.utility
        return (
            Custom(user_function(self.utility))
            if ":" in self.utility
            else shape_named(self.utility)
        )


@dataclass(frozen=True)
class FleetFile:
    """Holds a whole description."""

    path: Path
    fleet: FleetSettings
    jobs: dict[str, JobSettings]
    """Jobs by name, in the order of the file."""


def read_fleet(path: Path, environment: Mapping[str, str] | None = None) -> FleetFile:
    """Return the description in a file.

    `path`: see docs/guide.md, "Many jobs under one budget". `environment`: variables, of which
    ``HEADGATE__FLEET__SLOTS`` and its like override the file; default: the process's variables.
    Raises `ConfigError`: the file cannot be read, a key is unknown, or a value is missing, of another
    type or out of range; the message names the table and the key.
    """
    raw = read_file(path, "the description of the fleet", _DESCRIPTION_BYTES_MAX)
    tables = read_toml(raw, f'"{shown(path)}"')
    _refuse_unknown("the file", tables, ("fleet", "defaults", "jobs"))
    settings = dict(_table("fleet", tables.get("fleet", {})))
    if "budget" in settings:
        settings["budget"] = budget_steps(settings["budget"])
    settings |= _from(os.environ if environment is None else environment)
    fleet = _made(FleetSettings, "fleet", settings)
    defaults = dict(_table("defaults", tables.get("defaults", {})))
    root = defaults.pop("checkpoint_root", "")
    if not isinstance(root, str):
        msg = f"[defaults] checkpoint_root = {root!r} is not text; name a directory."
        raise ConfigError(msg)
    keys = [
        f.name for f in dataclasses.fields(JobSettings) if f.name not in ("query", "checkpoint")
    ]
    _refuse_unknown("[defaults]", defaults, (*keys, "checkpoint_root"))
    table = _table("jobs", tables.get("jobs", {}))
    if not table:
        msg = f'"{path}" has no job; add a table [jobs.NAME] with query and slo.'
        raise ConfigError(msg)
    jobs = {name: _job(name, job, defaults, root) for name, job in table.items()}
    _refuse_shared(jobs, "write to", "path", _files)
    _refuse_shared(jobs, "keep their state in", "checkpoint", lambda job: job.checkpoint)
    return FleetFile(path, fleet, jobs)


def _files(job: JobSettings) -> Any:
    """Return the directory of a job's file sink, which has its own log; None for another sink."""
    own_log = str(job.sink.get("format", "parquet")).lower() in formats.FILE_FORMATS
    return job.sink.get("path") if own_log else None


def _refuse_shared(
    jobs: Mapping[str, JobSettings], do: str, what: str, place: Callable[[JobSettings], Any]
) -> None:
    """Refuse two jobs with one place: a file sink skips steps that are in the other job's log."""
    first: dict[Any, str] = {}
    for name, job in jobs.items():
        shared = place(job)
        if shared and first.setdefault(str(shared), name) != name:
            msg = (
                f'jobs "{first[str(shared)]}" and "{name}" both {do} "{shared}"; give each a {what} of '
                "its own."
            )
            raise ConfigError(msg)


def _job(name: str, table: Any, defaults: Mapping[str, Any], root: str) -> JobSettings:
    """Return a job, with the values of ``[defaults]`` for keys that its table lacks."""
    if not _NAME.fullmatch(name):
        msg = (
            f'job name "{shown(name, 60)}" cannot name files; use 1 to 64 letters, digits, _ and -.'
        )
        raise ConfigError(msg)
    where = f"jobs.{name}"
    own = dict(_table(where, table))
    for key, value in defaults.items():
        both = isinstance(value, Mapping) and isinstance(own.get(key), Mapping)
        own[key] = {**value, **own[key]} if both else own.get(key, value)
    if "checkpoint" not in own and root:
        own["checkpoint"] = f"{root}/{name}"
    if "slo" in own:
        own["slo"] = _texts(where, "slo", own["slo"])
    if "slots" in own:
        slots = _table(f"{where}.slots", own["slots"])
        own["slots"] = _made(Slots, f"{where}.slots", {"start": slots.get("min", 1), **slots})
    if isinstance(own.get("utility"), list):
        own["utility"] = _points(where, own["utility"])
    priority = own.get("priority")
    if isinstance(priority, int) and not isinstance(priority, bool):
        own["priority"] = float(priority)
    return _made(JobSettings, where, own)


def _points(where: str, value: list[Any]) -> Piecewise:
    """Return the utility function with straight lines between points."""
    pairs = [
        item for item in value if isinstance(item, list) and len(item) == len(("value", "share"))
    ]
    fits = len(pairs) == len(value) and all(
        isinstance(x, int | float) and not isinstance(x, bool) and abs(x) <= _POINT_MAX
        for pair in pairs
        for x in pair
    )
    if not (fits and 1 <= len(value) <= _POINTS_MAX):
        subject = f"[{where}] utility = {shown(repr(value), 60)}"
        msg = (
            f"{subject} is not points; write [[value, share], ...] with 1 to {_POINTS_MAX} pairs of "
            "numbers."
        )
        raise ConfigError(msg)
    try:
        return Piecewise(tuple((float(x), float(share)) for x, share in pairs))
    except ConfigError as error:
        msg = f"[{where}] {error}"
        raise ConfigError(msg) from error


def _texts(where: str, key: str, value: Any) -> tuple[str, ...]:
    """Return one text or several as a tuple."""
    texts = [value] if isinstance(value, str) else value
    if not isinstance(texts, list) or not all(isinstance(text, str) for text in texts):
        subject = f"[{where}] {key} = {shown(repr(value), 60)}"
        msg = f'{subject} is not text; write "mean < 1 s over 1 s", or a list.'
        raise ConfigError(msg)
    return tuple(texts)


def _from(environment: Mapping[str, str]) -> dict[str, Any]:
    """Return the settings of the fleet from environment variables."""
    fields: dict[str, Any] = {}
    for name, value in environment.items():
        if name.startswith(_VARIABLE):
            key = name.removeprefix(_VARIABLE).lower()
            fields[key] = whole(value, name) if value.isdecimal() else value
    return fields


_TYPES: Mapping[str, tuple[type, ...]] = {
    "max_actions_per_minute": (int,),
    "key_groups": (int,),
    "min": (int,),
    "max": (int,),
    "start": (int,),
    "slots": (int, str, Slots),
    "slo": (tuple,),
    "budget": (tuple,),
    "utility": (str, Piecewise),
    "priority": (float,),
    "slot_rate": (int, float),
    "sink": (dict,),
    "trigger": (dict,),
    "options": (dict,),
}
"""Types of values by key; any other key has a text."""

_WORDS: Mapping[type, str] = {
    str: "text",
    int: "a whole number",
    float: "a number",
    tuple: "a list",
    dict: "a table",
    Slots: "a table",
    Piecewise: "points",
}


def _made(kind: type[Made], where: str, table: Mapping[str, Any]) -> Made:
    """Return a dataclass of the values of a table; ConfigError names table and key."""
    fields = {f.name: f for f in dataclasses.fields(kind)}  # type: ignore[arg-type]
    _refuse_unknown(f"[{where}]", table, fields)
    for key, value in table.items():
        types = _TYPES.get(key, (str,))
        if not isinstance(value, types) or isinstance(value, bool):
            wanted = " or ".join(_WORDS[t] for t in types if t is not int or float not in types)
            subject = f"[{where}] {key} = {shown(repr(value), 60)}"
            msg = f"{subject} is not {wanted}; see docs/guide.md for its form."
            raise ConfigError(msg)
    required = [n for n, f in fields.items() if _required(f) and n not in table]
    if required:
        msg = f"[{where}] lacks {required[0]}; add it."
        raise ConfigError(msg)
    try:
        return kind(**table)
    except ConfigError as error:
        msg = f"[{where}] {error}"
        raise ConfigError(msg) from error


def _required(spec: dataclasses.Field[Any]) -> bool:
    missing = dataclasses.MISSING
    return spec.default is missing and spec.default_factory is missing


def _table(where: str, value: Any) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        text = shown(repr(value), 60)
        msg = f"[{where}] is {text} and not a table; write [{where}] with its keys below."
        raise ConfigError(msg)
    return value


def _refuse_unknown(where: str, table: Mapping[str, Any], known: Any) -> None:
    for key in table:
        if key not in known:
            hint = nearest(key, known) or f"; known: {', '.join(known)}."
            msg = f'{where} has the unknown key "{shown(key, 60)}"{hint}'
            raise ConfigError(msg)
