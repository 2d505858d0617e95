"""The Spark engine as a scenario uses it: the one place that knows the engine's names.

Imports neither Spark nor the engine until a call needs them.
"""

from __future__ import annotations

import importlib
import re
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headgate.core.errors import ConfigError, HeadgateError, nearest
from headgate.core.location import uri

if TYPE_CHECKING:
    from headgate.scenario.description import Scenario
    from headgate.scenario.run import Query


class SparkEngine:
    """Starts, verifies and explains scenarios on Spark; holds one session."""

    def __init__(self) -> None:
        self._spark: Any = None

    def start(self, scenario: Scenario) -> Query:
        """Start the scenario's query."""
        hg = engine_module("headgate")
        workload = self.workload(scenario.workload)
        frame = workload.build(self.session(), **_build_options(workload, scenario))
        writer = (
            hg.writeStream(frame)
            .slots(max=scenario.slots_max or "auto", start=scenario.slots)
            .keyGroups(scenario.key_groups)
            .outputMode(workload.output_mode)
            .format(scenario.sink_format or "parquet")
            .option("path", uri(_placed(scenario.output)))
            .option("checkpointLocation", uri(_placed(scenario.checkpoint)))
            .queryName(query_name(scenario.workload))
            .option("headgate.workload", scenario.workload)
        )
        if scenario.budget is not None:
            writer = writer.budget(scenario.budget)
        if scenario.slo:
            writer = writer.slo(*scenario.slo).advise(scenario.advise)
        if scenario.policy is not None:
            writer = writer.policy(scenario.policy)
        if scenario.migration is not None:
            writer = writer.migration(scenario.migration)
        if scenario.slot_rate is not None:
            writer = writer.option("headgate.slotRate", scenario.slot_rate)
        if scenario.floor is not None:
            writer = writer.option("headgate.floor", scenario.floor)
        if workload.arrival is not None:
            writer = writer.option("headgate.arrival", workload.arrival)
        query: Query = writer.start()
        return query

    def verify(self, scenario: Scenario) -> Mapping[str, Any]:
        """Compare the output with Spark's batch answer."""
        verify = engine_module("headgate.engines.spark.verify").verify
        workload = self.workload(scenario.workload)
        spark = self.session()
        options = _build_options(workload, scenario)
        # Read with the query's own schema: CSV and JSON have none, an empty output has no file.
        reader = spark.read.schema(workload.build(spark, **options).schema)
        found: Mapping[str, Any] = verify(
            spark,
            workload.build,
            checkpoint=str(scenario.checkpoint),
            output=reader.format(scenario.sink_format or "parquet").load(
                uri(_placed(scenario.output))
            ),
            options=options,
            mode=workload.output_mode,
            reference=workload.reference,
        )
        return found

    def explain(self, scenario: Scenario) -> str:
        """Return what would run elastically."""
        workload = self.workload(scenario.workload)
        frame = workload.build(self.session(), **_build_options(workload, scenario))
        return str(engine_module("headgate").explain(frame))

    def close(self) -> None:
        """Stop the Spark session; nothing is left to stop where its JVM is gone."""
        spark, self._spark = self._spark, None
        if spark is None:
            return
        life = engine_module("headgate.engines.spark.life").JvmLife(spark)
        try:
            spark.stop()
        except Exception as error:
            if life.meaning(error) is None:
                raise

    def session(self) -> Any:
        """Return the session, made when it is first needed."""
        if self._spark is None:
            with _own_interrupts():
                self._spark = engine_module("headgate.engines.spark.session").session()
            engine_module("headgate.engines.spark.sources").register(self._spark)
        return self._spark

    def workload(self, name: str) -> Any:
        """Return a built-in workload, or the user's function in the same form."""
        if ":" in name:
            return UserWorkload(user_function(name))
        known = engine_module("headgate.engines.spark.queries").WORKLOADS
        if name not in known:
            hint = nearest(name, known) or f"; use one of {', '.join(sorted(known))}"
            msg = f'unknown workload "{name}"{hint}, or module:function for your own.'
            raise ConfigError(msg)
        return known[name]


def _placed(path: Path | None) -> Path:
    assert path is not None, "placed() comes first"
    return path.absolute()


@contextmanager
def _own_interrupts() -> Iterator[None]:
    """Keep the handler of SIGINT, which a new Spark context replaces by its own."""
    before = signal.getsignal(signal.SIGINT)
    yield
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGINT, before)


@dataclass(frozen=True)
class UserWorkload:
    """A user's ``function(spark, **options) -> DataFrame`` in the form of a built-in workload."""

    build: Callable[..., Any]
    """The function."""

    output_mode: str = "append"
    """What file sinks accept."""

    arrival: str | None = None
    """Column with the time a record became available; None: the engine finds one, or none."""

    reference: Callable[..., Any] | None = None
    """What computes the expected rows in another way; None for Spark's batch answer."""

    options: Mapping[str, Any] = field(default_factory=dict)
    """Arguments unless the scenario gives others."""


def _build_options(workload: Any, scenario: Scenario) -> dict[str, Any]:
    """Return the workload's arguments: its own, and over them the scenario's."""
    return {**workload.options, **scenario.build_options()}


def query_name(workload: str) -> str:
    """Return a query's name for a workload: letters, digits, ``_`` and ``-``, at most 64."""
    return re.sub(r"[^A-Za-z0-9_-]", "-", workload)[:64]


def user_function(name: str) -> Callable[..., Any]:
    """Return the function that ``module:function`` names, with the working directory importable."""
    module_name, _, function_name = name.partition(":")
    if "" not in sys.path and str(Path.cwd()) not in sys.path:
        sys.path.insert(0, str(Path.cwd()))
    try:
        found = getattr(importlib.import_module(module_name), function_name)
    except (ImportError, AttributeError, ValueError) as error:
        msg = f'cannot load "{name}": {error}; write module:function, importable from here.'
        raise ConfigError(msg) from error
    if not callable(found):
        msg = f'"{name}" is not a function; it must take a Spark session and return a DataFrame.'
        raise ConfigError(msg)
    function: Callable[..., Any] = found
    return function


def engine_module(name: str) -> Any:
    """Import a part of headgate that needs Spark, or say in one sentence why that fails."""
    try:
        return importlib.import_module(name)
    except ImportError as error:
        msg = f"this installation cannot load {name} ({error}); install headgate with all it needs."
        raise HeadgateError(msg) from error
