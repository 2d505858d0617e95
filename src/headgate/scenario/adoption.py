"""Converts a checkpoint between plain Spark and headgate, for a query that can be imported."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from headgate.core.errors import ConfigError
from headgate.core.input import is_directory, is_file, shown
from headgate.scenario.description import OUTPUT_MODES, check_place
from headgate.scenario.spark import (
    SparkEngine,
    call_user,
    check_arguments,
    engine_module,
    sparks_errors,
)

Act = Literal["adopt", "export"]


def carry_checkpoint(
    act: Act,
    origin: Path,
    target: Path,
    query: str,
    options: Mapping[str, Any],
    conf: Mapping[str, str] | None = None,
    output_mode: str | None = None,
) -> dict[str, Any]:
    """Adopt a plain query's checkpoint, or export one of headgate's.

    Returns the result of `hg.adopt` or `hg.export`.

    Parameters
    ----------
    origin, target : Path    Checkpoint to read, and checkpoint to write.
    query : str
        ``module:function`` of a ``function(spark, **options)`` that returns headgate's writer of the
        query, or the query's DataFrame; or a built-in workload.
    conf : mapping, optional    Settings of the Spark session.
    output_mode : str, optional    Output mode of a DataFrame; default: the workload's.
    """
    ours, plain = (target, origin) if act == "adopt" else (origin, target)
    engine = SparkEngine(conf)
    try:
        with sparks_errors():
            workload = engine.workload(query)
            arguments = {**workload.options, **options}
            check_arguments(query, workload, arguments)
            _check_places(act, origin.absolute(), target.absolute())
            if output_mode not in (None, *OUTPUT_MODES):
                msg = f'output mode "{shown(output_mode, 60)}" is unknown; use {", ".join(OUTPUT_MODES)}.'
                raise ConfigError(msg)
            made = call_user(query, lambda: workload.build(engine.session(), **arguments))
            writer = _writer(query, made, output_mode or workload.output_mode)
            writer = writer.option("checkpointLocation", str(ours.absolute()))
            function = getattr(engine_module("headgate"), act)
            result: dict[str, Any] = function(writer, str(plain.absolute()))
            return result
    finally:
        engine.close()


def _check_places(act: Act, origin: Path, target: Path) -> None:
    """Refuse, before Spark starts, an origin that cannot be read and a target that is in use."""
    if not is_directory(origin):
        msg = f'"{shown(origin)}" is no directory with a checkpoint; name the one to {act}.'
        raise ConfigError(msg)
    check_place(target)
    log = engine_module("headgate.spark.plain.log")
    log.refuse_used(target)
    log.refuse_within(target, origin)
    if act == "adopt":
        log.newest(origin)
        log.check_types(origin)
    elif not is_file(origin / "headgate" / "identity.json"):
        msg = f"{shown(origin)} is no directory with a checkpoint of headgate's; give that of the query."
        raise ConfigError(msg)


def _writer(query: str, made: Any, mode: str) -> Any:
    """Return the writer that a user's function returned, or a writer of the returned DataFrame."""
    if hasattr(made, "settings") and hasattr(made, "df"):
        return made
    if hasattr(made, "schema") and hasattr(made, "isStreaming"):
        return engine_module("headgate").writeStream(made).outputMode(mode)
    msg = (
        f'"{shown(query)}" returned {shown(type(made).__name__, 60)}; it must take a Spark session and '
        "return hg.writeStream(...) of the query, not started, or its DataFrame."
    )
    raise ConfigError(msg)
