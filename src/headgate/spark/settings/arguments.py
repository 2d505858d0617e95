"""Checks the arguments of `hg.writeStream`'s methods, and refuses a bad one in one sentence."""

from __future__ import annotations

from collections.abc import Mapping
from inspect import iscoroutinefunction, isgeneratorfunction
from typing import Any

from pyspark.sql import SparkSession

from headgate.control import registry
from headgate.control.policy import Policy, checked
from headgate.core.duration import parse_duration_s
from headgate.core.errors import ConfigError, require
from headgate.core.input import checked_text
from headgate.core.slo import Slo, parse_slo
from headgate.spark.jvm.analysis import is_trigger_interval


def note(what: str, value: object) -> None:
    """Raise ConfigError unless `value` is a text that can be written into a journal."""
    require(isinstance(value, str), what, value, "a text")
    checked_text(str(value), what)


def text(what: str, value: Any, allowed: str) -> str:
    """Return `value`, which must be a text."""
    require(isinstance(value, str) and bool(value.strip()), what, value, allowed)
    checked: str = value
    return checked


def whole(what: str, value: object, least: int, more: str = "") -> int:
    """Return `value`, which must be a whole number, at least `least`."""
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        allowed = f"a whole number of {least} or more {more}".strip()
        msg = f"{what}={value!r} is out of range; use {allowed}."
        raise ConfigError(msg)
    return value


def check_policy(policy: object, parameters: Mapping[str, object]) -> None:
    """Raise ConfigError unless `policy` is a name with `parameters`, or a policy without them."""
    if not isinstance(policy, str):
        if not hasattr(policy, "decide"):
            msg = (
                f'policy={policy!r} is not allowed; use a name such as "streamswitch", or a policy.'
            )
            raise ConfigError(msg)
        if parameters:
            msg = (
                f"policy parameter {next(iter(parameters))} goes with a policy's name only; give it to "
                "the policy itself."
            )
            raise ConfigError(msg)
        checked(policy, "the policy")
    for name, value in parameters.items():
        number = isinstance(value, int | float) and not isinstance(value, bool)
        require(number, f"policy parameter {name}", value, "a number")


def check_slots(least: object, most: object, start: object) -> None:
    """Raise ConfigError unless these are numbers of slots, least <= start <= most, or "auto"."""
    numbers = [whole("slots min", least, 1)]
    for name, value in (("start", start), ("max", most)):
        if value != "auto":
            numbers.append(whole(f"slots {name}", value, 1, 'or "auto"'))
    if numbers != sorted(numbers):
        msg = f"slots min={least}, start={start}, max={most} are not 1 <= min <= start <= max."
        raise ConfigError(msg)


def check_interval(spark: SparkSession, interval: object, kind: str = "processingTime") -> None:
    """Raise ConfigError unless Spark accepts `interval` for a trigger."""
    allowed = 'an interval in Spark\'s words, such as "1 second" or "500 milliseconds"'
    if not is_trigger_interval(spark, text(f"trigger {kind}", interval, allowed)):
        msg = f'trigger {kind}="{interval}" is not allowed; use {allowed}.'
        raise ConfigError(msg)


def check_key_groups(count: object) -> None:
    """Raise ConfigError unless `count` is a number of key groups, 1 to 2**15 - 1."""
    if whole("keyGroups", count, 1) >= 2**15:
        msg = f"keyGroups={count} is out of range; use 1 to {2**15 - 1}."
        raise ConfigError(msg)


def check_budget(budget: object) -> None:
    """Raise ConfigError unless `budget` is a duration with its unit, "auto" or None."""
    if budget is not None and budget != "auto":
        allowed = 'a number with its unit, such as "800 ms", or "auto", or None'
        parse_duration_s(text("budget", budget, allowed))


def slo(value: object) -> Slo:
    """Return an SLO, parsed if it is a text."""
    if isinstance(value, Slo):
        return value
    return parse_slo(text("slo", value, 'a text such as "mean < 1 s over 1 s"'))


def check_function(function: object) -> None:
    """Raise ConfigError unless `function` can be called for a batch."""
    allowed = "a function of a DataFrame and a number, without yield and async"
    runs = not (iscoroutinefunction(function) or isgeneratorfunction(function))
    require(callable(function) and runs, "foreachBatch", function, allowed)


def policy_of(name: str, parameters: Mapping[str, float]) -> Policy:
    """Return the policy with a name and parameters."""
    return registry.policy(call(name, parameters))


def call(name: str, parameters: Mapping[str, float]) -> str:
    """Return the text of a policy with parameters, as the registry reads it."""
    arguments = ", ".join(f"{key}={value:g}" for key, value in parameters.items())
    return f"{name}({arguments})" if arguments else name
