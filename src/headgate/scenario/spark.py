"""Runs scenarios on the Spark engine; the only module that knows the engine's names.

Imports neither Spark nor the engine until a call needs them.
"""

from __future__ import annotations

import functools
import importlib
import inspect
import re
import signal
import sys
import sysconfig
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headgate.control.registry import policy
from headgate.core.calls import refuse_call
from headgate.core.errors import ConfigError, EngineError, HeadgateError, nearest, without_panics
from headgate.core.formats import FILE_FORMATS
from headgate.core.input import is_directory, shown
from headgate.core.installed import WORKLOADS, installed
from headgate.core.location import uri
from headgate.core.stores import store_url
from headgate.journal.reader import locate
from headgate.scenario.description import DEMO
from headgate.scenario.places import to_spark, written
from headgate.scenario.rehearsal import REHEARSED_S, elsewhere, rehearse_changes
from headgate.scenario.workload import Workload

if TYPE_CHECKING:
    from headgate.scenario.description import Scenario
    from headgate.scenario.engine import ScenarioQuery


class SparkEngine:
    """Starts, verifies and explains scenarios on Spark; holds one session."""

    def __init__(self, conf: Mapping[str, str] | None = None) -> None:
        self._spark: Any = None
        self._conf = dict(conf or {})
        self._beside: Any = None

    def start(self, scenario: Scenario) -> ScenarioQuery:
        """Start the scenario's query."""
        with sparks_errors():
            return self._start(scenario)

    def rehearse(self, scenario: Scenario, interrupted: Callable[[], bool]) -> None:
        """Run some batches of a built-in workload, with the scenario's changes of slots.

        Afterwards all code is loaded and compiled, for batches and for changes of slots. Does nothing
        for a user's function, a service, a stateless workload, a table or a short run.
        """
        workload = self.workload(scenario.workload)
        own = workload.function is not None or workload.beside is not None
        if own or not workload.stateful or scenario.table is not None:
            return
        if scenario.duration_s < REHEARSED_S:
            return
        with elsewhere(scenario) as scratch:
            query = self.start(scratch)
            try:
                rehearse_changes(query, scratch, interrupted)
            finally:
                query.stop()

    def _start(self, scenario: Scenario) -> ScenarioQuery:
        hg = engine_module("headgate")
        workload = self.workload(scenario.workload)
        if scenario.policy is not None and workload.function is None and workload.stateful:
            policy(scenario.policy)  # refuses a policy of pools before Spark starts
        beside = self._start_beside(workload, scenario)
        frame = self._build(workload, scenario)
        sink_format, sink_options = _sink(beside, scenario)
        writer = (
            hg.writeStream(frame)
            .slots(max=scenario.slots_max or "auto", start=scenario.slots)
            .keyGroups(scenario.key_groups)
            .outputMode(scenario.output_mode or workload.output_mode)
            .format(sink_format)
            .options(**sink_options)
            .option("checkpointLocation", to_spark(_given(scenario.checkpoint)))
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
        if scenario.memory_max is not None:
            writer = writer.option("headgate.state.memoryMax", scenario.memory_max)
        if scenario.real_time:
            writer = writer.trigger(realTime="5 minutes")
        arrival = scenario.arrival or workload.arrival
        if arrival is not None:
            writer = writer.option("headgate.arrival", arrival)
        table = scenario.table
        query: ScenarioQuery = writer.start() if table is None else writer.toTable(table)
        if beside is not None:
            beside.begin()
        return query

    def _start_beside(self, workload: Workload, scenario: Scenario) -> Any:
        """Start and return the service that runs beside the workload's query; None without a service."""
        if workload.beside is not None and self._beside is None:
            options = _build_options(workload, scenario)
            check_arguments(scenario.workload, workload, options)
            place = _placed(scenario.checkpoint)
            self._beside = workload.beside(place.with_name(f"{place.name}-beside"), options)
        return self._beside

    def verify(self, scenario: Scenario) -> Mapping[str, Any]:
        """Compare the output with Spark's batch answer.

        Raises `ConfigError`: there is no output.
        """
        if scenario.checkpoint is None or not _may_be(scenario.checkpoint):
            msg = f'there is no checkpoint at "{shown(scenario.checkpoint)}"; name the query\'s.'
            raise ConfigError(msg)
        workload = self.workload(scenario.workload)
        check_arguments(scenario.workload, workload, _build_options(workload, scenario))
        beside = workload.beside
        if beside is not None and _writes_beside(beside, scenario):
            with sparks_errors():
                return self._verify(scenario)
        placed = scenario.output is not None and is_directory(scenario.output)
        if scenario.table is None and not placed:
            msg = (
                f'there is no output at "{shown(scenario.output)}"; name its directory with --out.'
            )
            raise ConfigError(msg)
        if store_url(scenario.checkpoint) is None:
            locate(scenario.checkpoint)  # raises where the checkpoint has no journal
        with sparks_errors():
            return self._verify(scenario)

    def _verify(self, scenario: Scenario) -> Mapping[str, Any]:
        verify = engine_module("headgate.spark.api.verify").verify
        workload = self.workload(scenario.workload)
        beside = self._start_beside(workload, scenario)
        options = self._options(workload, scenario)
        # Read with the query's own schema: CSV and JSON have none, an empty output has no file.
        schema = self._build(workload, scenario).schema
        spark = self.session()
        if beside is not None and _writes_beside(beside, scenario):
            output = beside.output(spark, schema)
        elif scenario.table is not None:
            output = spark.table(scenario.table)
        else:
            read_as = scenario.sink_format or "parquet"
            # a table has its own schema, and Delta refuses another
            reader = spark.read.schema(schema) if read_as in FILE_FORMATS else spark.read
            output = reader.format(read_as).load(uri(_placed(scenario.output)))
        result: Mapping[str, Any] = verify(
            spark,
            workload.build,
            checkpoint=written(_given(scenario.checkpoint)),
            output=output,
            options=options,
            mode=scenario.output_mode or workload.output_mode,
            reference=workload.reference,
        )
        return result

    def explain(self, scenario: Scenario) -> str:
        """Return the elastic parts of the scenario's query, in words."""
        with sparks_errors():
            frame = self._build(self.workload(scenario.workload), scenario)
            explain = engine_module("headgate").explain
            place = None if scenario.checkpoint is None else written(scenario.checkpoint)
            return str(
                explain(
                    frame,
                    scenario.output_mode,
                    memoryMax=scenario.memory_max,
                    checkpointLocation=place,
                    realTime=scenario.real_time,
                )
            )

    def check(self, name: str, options: Mapping[str, Any], where: str) -> None:
        """Refuse a workload that does not exist, or options that it does not take; needs no session.

        Raises `ConfigError`, whose message begins with `where`.
        """
        try:
            workload = self.workload(name)
            check_arguments(name, workload, {**workload.options, **options})
        except ConfigError as error:
            msg = f"{where} {error}"
            raise ConfigError(msg) from error

    def _build(self, workload: Workload, scenario: Scenario) -> Any:
        """Return the workload's query; bad options are refused before Spark starts."""
        options = self._options(workload, scenario)
        check_arguments(scenario.workload, workload, options)
        if workload.beside is not None:
            self._conf = {**workload.beside.conf(self._conf), **self._conf}
        frame = call_user(scenario.workload, lambda: workload.build(self.session(), **options))
        a_frame = hasattr(frame, "schema") and hasattr(frame, "isStreaming")
        if workload.function is not None and not a_frame:
            msg = (
                f'"{shown(scenario.workload)}" returned {shown(type(frame).__name__, 60)}; it must '
                "take a Spark session and return a streaming DataFrame."
            )
            raise ConfigError(msg)
        return frame

    def _options(self, workload: Workload, scenario: Scenario) -> dict[str, Any]:
        """Return the workload's arguments, with the options of the service that runs beside it."""
        return _build_options(workload, scenario) | (self._beside.options if self._beside else {})

    def close(self) -> None:
        """Stop the Spark session, and the service that ran beside it."""
        try:
            self._stop_session()
        finally:
            beside, self._beside = self._beside, None
            if beside is not None:
                beside.close()

    def _stop_session(self) -> None:
        """Stop the session; nothing is left to stop where its JVM is gone."""
        spark, self._spark = self._spark, None
        if spark is None:
            return
        life = engine_module("headgate.spark.jvm.life").JvmLife(spark)
        try:
            spark.stop()
        except Exception as error:
            if life.meaning(error) is None:
                raise

    def session(self) -> Any:
        """Return the session; the first call makes it."""
        if self._spark is None:
            with _own_interrupts():
                session = engine_module("headgate.spark.cluster.session").session
                self._spark = session(**self._conf)
            engine_module("headgate.spark.cluster.sources").register_installed(self._spark)
        return self._spark

    def workload(self, name: str) -> Workload:
        """Return an installed workload, or the user's function in the same form."""
        if ":" in name:
            function = user_function(name)
            return Workload(_ship_with(function), function=function)
        known = installed(WORKLOADS)
        if name in known:
            workload: Workload = known[name].load(Workload, "Workload")
            return workload
        if not known or name in DEMO:
            msg = (
                f'workload "{shown(name, 80)}" is not installed: in a checkout of headgate, pip install '
                f"./demo brings {', '.join(DEMO)}; your own is module:function."
            )
        else:
            others = f"; use one of {', '.join(known)}, or module:function for your own."
            msg = f'unknown workload "{shown(name, 80)}"{nearest(name, known) or others}'
        raise ConfigError(msg)


def _writes_beside(beside: Any, scenario: Scenario) -> bool:
    """Return whether results go to the service beside the query, and not into a directory."""
    return scenario.table is None and scenario.sink_format in (None, beside.sink_format)


def _sink(beside: Any, scenario: Scenario) -> tuple[str, dict[str, str]]:
    """Return format and options of the scenario's sink."""
    if beside is not None and _writes_beside(beside, scenario):
        return beside.sink_format, dict(beside.sink_options)
    if scenario.table is not None:
        return scenario.sink_format or "parquet", {}
    return scenario.sink_format or "parquet", {"path": uri(_placed(scenario.output))}


def _given(path: Path | None) -> Path:
    assert path is not None, "placed() comes first"
    return path


def _placed(path: Path | None) -> Path:
    return _given(path).absolute()


def _may_be(checkpoint: Path) -> bool:
    """Return whether a checkpoint may exist; on a store, only a read can tell."""
    return store_url(checkpoint) is not None or is_directory(checkpoint)


@contextmanager
def _own_interrupts() -> Iterator[None]:
    """Restore the handler of SIGINT that a new Spark context replaces by its own."""
    before = signal.getsignal(signal.SIGINT)
    yield
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGINT, before)


def _build_options(workload: Workload, scenario: Scenario) -> dict[str, Any]:
    """Return the workload's arguments; the scenario's arguments override its own."""
    return {**workload.options, **scenario.build_options()}


def query_name(workload: str) -> str:
    """Return a query's name for a workload: letters, digits, ``_`` and ``-``, at most 64."""
    return re.sub(r"[^A-Za-z0-9_-]", "-", workload)[:64]


def user_function(name: str) -> Callable[..., Any]:
    """Return the function that ``module:function`` names, with the working directory importable."""
    module_name, _, function_name = name.partition(":")
    parts = [*module_name.split("."), function_name]
    if not all(part.isidentifier() for part in parts):
        msg = f'cannot load "{shown(name, 80)}": write module:function, importable from here.'
        raise ConfigError(msg)
    if "" not in sys.path and str(Path.cwd()) not in sys.path:
        sys.path.insert(0, str(Path.cwd()))
    try:
        with without_panics():
            member = getattr(importlib.import_module(module_name), function_name)
    except (Exception, SystemExit) as error:  # a module of the user's own may raise anything
        why = shown(f"{type(error).__name__}: {error}")
        msg = (
            f'cannot load "{shown(name, 80)}": {why}; write module:function, importable from here.'
        )
        raise ConfigError(msg) from error
    if _of_python(module_name):
        msg = (
            f'"{shown(name, 80)}" is part of Python and makes no query; name a function of yours that '
            "takes a Spark session and returns a DataFrame."
        )
        raise ConfigError(msg)
    if not callable(member):
        takes = "it must take a Spark session and return a DataFrame"
        msg = f'"{shown(name, 80)}" is not a function; {takes}.'
        raise ConfigError(msg)
    function: Callable[..., Any] = member
    return function


def _of_python(module_name: str) -> bool:
    """Return whether an imported module is Python's own, and not only has the name of such a module."""
    if module_name.partition(".")[0] not in sys.stdlib_module_names:
        return False
    file = getattr(sys.modules.get(module_name), "__file__", None)
    return file is None or file.startswith(f"{sysconfig.get_path('stdlib')}/")


def _ship_with(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a user's function that first ships its module to executors that cannot import it."""

    @functools.wraps(function)
    def build(spark: Any, *arguments: Any, **options: Any) -> Any:
        engine_module("headgate.spark.cluster.shipping").ship(spark, function)
        return function(spark, *arguments, **options)

    return build


def call_user(name: str, work: Callable[[], Any], what: str = "make a query") -> Any:
    """Return the result of a user's function; an error in it is reported in one sentence.

    Raises `ConfigError`: the function raised an error that is neither headgate's nor Spark's.
    """
    try:
        with without_panics():
            return work()
    except HeadgateError:
        raise
    except (Exception, SystemExit) as error:
        if _of_spark(error):
            raise
        why = shown(f"{type(error).__name__}: {error}")
        msg = f'"{shown(name, 80)}" could not {what}: {why}; --debug shows where.'
        raise ConfigError(msg) from error


def check_arguments(name: str, workload: Workload, options: Mapping[str, Any]) -> None:
    """Refuse options that a workload's function, or its source, does not take."""
    function = workload.function or workload.build
    try:
        parameters = inspect.signature(function).parameters
    except (TypeError, ValueError):
        return  # a function in C may have no signature
    kinds = [parameter.kind for parameter in parameters.values()]
    takes = list(parameters)[1:]
    if inspect.Parameter.VAR_KEYWORD in kinds:
        if workload.check is not None:
            workload.check({k: _spark_text(v) for k, v in options.items() if k not in takes})
        return
    for option in options:
        if option not in takes:
            known = f"; it takes {', '.join(takes) or 'none'}."
            hint = nearest(option, takes) or known
            msg = f'workload "{shown(name, 80)}" has no option "{shown(option, 60)}"{hint}'
            raise ConfigError(msg)
    refuse_call(function, f'workload "{shown(name, 80)}"', "spark", named=tuple(options))


def _spark_text(value: object) -> str:
    """Return an option as the text that Spark passes to a source."""
    return str(value).lower() if isinstance(value, bool) else str(value)


def _of_spark(error: BaseException) -> bool:
    """Return whether an error is PySpark's or py4j's; this module must not import either."""
    return type(error).__module__.startswith(("pyspark.", "py4j."))


@contextmanager
def sparks_errors() -> Iterator[None]:
    """Turn a refusal or failure of Spark into one sentence: Spark's own text runs over many lines."""
    try:
        yield
    except HeadgateError:
        raise
    except Exception as error:
        if not _of_spark(error):
            raise
        text = str(error).strip().partition("\n")[0]
        text = _CONDITION.sub("", text.partition(" SQLSTATE:")[0])
        refused = type(error).__name__ in _REFUSALS
        kind = ConfigError if refused else EngineError
        msg = f"Spark {'refuses it' if refused else 'failed'}: {shown(text.strip())}"
        raise kind(msg) from error


_CONDITION = re.compile(r"^\[[A-Z0-9_.]+\] ")
_REFUSALS = ("AnalysisException", "IllegalArgumentException", "ParseException", "PySparkTypeError")


def engine_module(name: str) -> Any:
    """Import a part of headgate that needs Spark, or say in one sentence why that fails."""
    try:
        return importlib.import_module(name)
    except ImportError as error:
        msg = f"this installation cannot load {name} ({error}); install headgate with all it needs."
        raise HeadgateError(msg) from error
