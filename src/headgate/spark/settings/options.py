"""Defines headgate's own options in one table: their names, allowed values and meanings.

The writer refuses a wrong value when it is set; the code that uses an option reads it by `Option.of`.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from headgate.control.pools.groupings import GROUPINGS, Groupings
from headgate.core.duration import parse_duration_s
from headgate.core.errors import ConfigError, nearest
from headgate.core.input import host_and_port
from headgate.core.size import bytes_or_size
from headgate.core.stores import is_store_option, store_option

Value = TypeVar("Value")

PREFIX = "headgate."


@dataclass(frozen=True)
class Option(Generic[Value]):
    """Describes an option."""

    key: str
    parse: Callable[[str], Value]
    """Converts the text to the value; raises ValueError or ConfigError for a text that is not allowed."""
    default: Value
    """Value if the option is not set."""
    allowed: str
    """Allowed texts, as the words after "use" in a message."""
    means: str
    """Purpose of the option."""
    names: Collection[str] = ()
    """Allowed words of the text, for hints about misspelt words; empty if any word is allowed."""

    def of(self, options: Mapping[str, str]) -> Value:
        """Return the value among a writer's `options`.

        Raises `ConfigError`: the text is not allowed.
        """
        text = options.get(self.key)
        return self.default if text is None else self.value_of(text)

    def value_of(self, text: str) -> Value:
        """Return the value that a text stands for; raises as `of`."""
        try:
            return self.parse(text)
        except (ConfigError, ValueError, OverflowError):
            last = re.split("[:,]", text)[-1].strip()
            near = "." if last in self.names else nearest(last, self.names) or "."
            msg = f'{self.key}="{text}" is not allowed; use {self.allowed}{near}'
            raise ConfigError(msg) from None


def _whole(least: int) -> Callable[[str], int]:
    def parse(text: str) -> int:
        number = int(text)
        if number < least:
            raise ValueError(text)
        return number

    return parse


_bytes = bytes_or_size


def _above_zero(text: str) -> float:
    number = float(text)
    if not (number > 0.0 and math.isfinite(number)):
        raise ValueError(text)
    return number


def _flag(text: str) -> bool:
    return {"true": True, "false": False}[_one_of("true", "false")(text)]


def _one_of(*words: str) -> Callable[[str], str]:
    def parse(text: str) -> str:
        if text.strip().lower() not in words:
            raise ValueError(text)
        return text.strip().lower()

    return parse


def _text(text: str) -> str:
    if not text.strip():
        raise ValueError(text)
    return text


def _names(text: str) -> tuple[str, ...]:
    return tuple(_text(name.strip()) for name in text.split(","))


def _zero_or_more_s(text: str) -> float:
    return parse_duration_s(text, zero=True)


SLICES, WHOLE = "slices", "whole"
EXACTLY_ONCE, AT_LEAST_ONCE = "exactly-once", "at-least-once"

_DURATION = 'a number above 0 with its unit, such as "30 s"'

ARRIVAL: Option[str | None] = Option(
    "headgate.arrival", _text, None, "the name of a timestamp column", "when a record arrived"
)
ORDERED: Option[tuple[str, ...] | None] = Option(
    "headgate.ordered",
    _names,
    None,
    'names of columns, such as "ts" or "ts, offset"',
    "the order in which records count, where that makes a difference",
)
WINDOWS = Option(
    "headgate.windows",
    _one_of(SLICES, WHOLE),
    SLICES,
    f'"{SLICES}" or "{WHOLE}"',
    "whether overlapping windows are kept as slices that they share, or each by itself as in Spark",
)
SNAPSHOT_EVERY: Option[int | None] = Option(
    "headgate.snapshotEvery",
    _whole(1),
    None,
    "a whole number of 1 or more",
    "steps between two full sections of a key group",
)
MEMORY_MAX: Option[int | None] = Option(
    "headgate.state.memoryMax",
    _bytes,
    None,
    'a number of bytes above 0, or a size such as "500 MB"',
    "what state may take of a host's memory; key groups that are touched least lie on its disk",
)
PREAGGREGATE = Option(
    "headgate.preaggregate",
    _one_of("auto", "on", "off"),
    "auto",
    '"auto", "on" or "off"',
    "whether to aggregate before the exchange",
)
ATTEMPTS = Option(
    "headgate.attempts",
    _whole(1),
    4,
    "a whole number of 1 or more",
    "executions of a batch before the query fails",
)
KEEP_LATE = Option(
    "headgate.keepLate",
    _flag,
    False,
    '"true" or "false"',
    "keep late records for headgate verify",
)
SHOW_KEYS = Option(
    "headgate.showKeys",
    _flag,
    False,
    '"true" or "false"',
    "write the value of the hottest key into the journal, for headgate diagnose",
)
ERROR_TEXT = Option(
    "headgate.journal.errorText",
    _flag,
    False,
    '"true" or "false"',
    "write into the journal what users' exceptions say, which may quote a record",
)
METRICS: Option[tuple[str, int] | None] = Option(
    "headgate.metrics",
    lambda text: host_and_port(text, "headgate.metrics"),
    None,
    'a host and a port, such as "127.0.0.1:9095"',
    "serve the query's metrics to Prometheus from the driver",
)
WORKLOAD: Option[str | None] = Option(
    "headgate.workload", _text, None, "a name", "name for the journal"
)
TIME_LIMIT: Option[float | None] = Option(
    "headgate.processorTimeLimit",
    parse_duration_s,
    None,
    _DURATION,
    "a call of a processor that takes longer fails",
)
BACKLOG_BYTES_MAX = Option(
    "headgate.backlog.bytesMax",
    _bytes,
    256 * 2**20,
    'a number of bytes above 0, or a size such as "256 MiB"',
    "above this a slot serves past its budget",
)
BACKLOG_AGE_MAX = Option(
    "headgate.backlog.ageMax",
    parse_duration_s,
    60.0,
    _DURATION,
    "likewise for the oldest waiting record",
)
REPLICAS_INTERVAL = Option(
    "headgate.replicas.interval",
    parse_duration_s,
    10.0,
    _DURATION,
    "pools of replicas: time between two decisions",
)
REPLICAS_RESTART = Option(
    "headgate.replicas.restart",
    parse_duration_s,
    5.0,
    _DURATION,
    "pools of replicas: how long a policy that restarts stops the query",
)
REPLICAS_TIMEOUT: Option[float | None] = Option(
    "headgate.replicas.timeout",
    parse_duration_s,
    None,
    _DURATION,
    "pools of replicas: a row that is older when its turn comes is dropped and counted",
)
REPLICAS_QUEUE_MAX: Option[int | None] = Option(
    "headgate.replicas.queueMax",
    _whole(1),
    None,
    "a whole number of 1 or more",
    "pools of replicas: rows that may wait at a stage; new ones beyond it are dropped and counted",
)
GROUPING = Option(
    "headgate.grouping",
    Groupings.parse,
    Groupings(),
    f'{", ".join(GROUPINGS)}, or one for a stage as in "shuffle, map-1: least-work"',
    "pools of replicas: which replica a row goes to",
    tuple(GROUPINGS),
)
EXECUTORS = Option(
    "headgate.executors",
    _one_of("follow", "keep"),
    "follow",
    '"follow" or "keep"',
    "whether executors are asked for and given back as slots change",
)
SLOT_RATE: Option[float | None] = Option(
    "headgate.slotRate",
    _above_zero,
    None,
    "a number above 0",
    "experiment: records that a slot serves per second of wall time",
)
DELIVERY = Option(
    "headgate.delivery",
    _one_of(EXACTLY_ONCE, AT_LEAST_ONCE),
    EXACTLY_ONCE,
    f'"{EXACTLY_ONCE}" or "{AT_LEAST_ONCE}"',
    "format kafka: whether a step that comes again is skipped, or written again by Spark's own writer",
)
FLOOR: Option[float | None] = Option(
    "headgate.floor",
    _zero_or_more_s,
    None,
    'a number with its unit, such as "0 s" or "300 ms"',
    "experiment: the latency floor, in place of the measured one",
)

REAL_TIME = Option(
    "headgate.experimental.realTime",
    _flag,
    False,
    '"true" or "false"',
    "without effect: trigger(realTime=...) had to be asked for once",
)
EPOCH = Option(
    "headgate.epoch",
    parse_duration_s,
    0.05,
    'a number above 0 with its unit, such as "50 ms"',
    "real time: time between two commits, and between two outputs, at the least",
)
COMMITTED, EARLY = "committed", "early"
RELEASE = Option(
    "headgate.release",
    _one_of(COMMITTED, EARLY),
    COMMITTED,
    f'"{COMMITTED}" or "{EARLY}"',
    "real time: whether outputs wait for their commit, or go out before it and perhaps twice",
)

_ALL: tuple[Option[Any], ...] = (
    ARRIVAL,
    ORDERED,
    WINDOWS,
    SNAPSHOT_EVERY,
    MEMORY_MAX,
    PREAGGREGATE,
    ATTEMPTS,
    KEEP_LATE,
    SHOW_KEYS,
    ERROR_TEXT,
    METRICS,
    WORKLOAD,
    TIME_LIMIT,
    BACKLOG_BYTES_MAX,
    BACKLOG_AGE_MAX,
    REPLICAS_INTERVAL,
    REPLICAS_RESTART,
    REPLICAS_TIMEOUT,
    REPLICAS_QUEUE_MAX,
    GROUPING,
    EXECUTORS,
    SLOT_RATE,
    DELIVERY,
    FLOOR,
    REAL_TIME,
    EPOCH,
    RELEASE,
)
OPTIONS: Mapping[str, Option[Any]] = {option.key: option for option in _ALL}
"""All options by name, as docs/guide.md lists them."""

_BY_LOWER = {key.lower(): option for key, option in OPTIONS.items()}


def is_own(key: str) -> bool:
    """Return whether an option's name is one of headgate's; case does not matter, as in Spark."""
    return key.lower().startswith(PREFIX)


def check_option(key: str, value: object) -> tuple[str, str]:
    """Return name and text of one of headgate's options in the form of the table.

    `key`: name in any case. `value`: a text, a number or a boolean. Raises `ConfigError`: there is
    no such option, or the value is not allowed.
    """
    if is_store_option(key):
        return store_option(key, str(value).lower() if isinstance(value, bool) else str(value))
    option = _BY_LOWER.get(key.lower())
    if option is None:
        msg = f'unknown option "{key}"{nearest(key, OPTIONS, PREFIX) or "."}'
        raise ConfigError(msg)
    text = str(value).lower() if isinstance(value, bool) else str(value)
    option.value_of(text)
    return option.key, text
