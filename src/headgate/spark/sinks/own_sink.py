"""Defines the port of sinks from installed packages, and writes a query's outputs to such a sink."""

from __future__ import annotations

import uuid
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import ClassVar

from pyspark.sql import DataFrame
from pyspark.sql.types import StructType

from headgate.core.errors import CheckpointError, ConfigError, instead_of, nearest
from headgate.core.installed import SINKS, Plugin, installed
from headgate.spark.jvm.sparksinks import WrittenStream

_OF_THE_WRITER = ("checkpointlocation", "queryname")
"""Options of the writer that are not the sink's own."""


class Sink(ABC):
    """A sink of your own: the format of `hg.writeStream(df).format(name)`, by an entry point.

    A subclass declares the options and output modes that it takes, and writes outputs. An output is
    the result of one step; outputs are numbered 0, 1, 2 and so on for as long as the checkpoint exists.
    Each start of a query makes one object, and one thread at a time calls its methods. See
    docs/own-sink.md.

    Attributes
    ----------
    options : mapping    The writer's options, by the names of `option_names`.
    mode : str    append, update or complete.
    schema : StructType    Columns of every output.
    """

    option_names: ClassVar[tuple[str, ...]] = ()
    """The options that the sink takes, in any case; other options are refused."""
    required_options: ClassVar[tuple[str, ...]] = ()
    """The options without which a query is refused."""
    output_modes: ClassVar[tuple[str, ...]] = ("append",)
    """The output modes that the sink takes."""
    exactly_once: ClassVar[str] = ""
    """How the sink skips or replaces a repeated output, as in ``each output replaces itself``; empty
    if the sink then has the output twice."""

    def __init__(self, options: Mapping[str, str], mode: str, schema: StructType) -> None:
        self.options, self.mode, self.schema = options, mode, schema

    def begin(self) -> None:  # noqa: B027 -- a sink may have nothing to open
        """Open the destination; called before the other methods, when the query holds its checkpoint.

        Raise `hg.ConfigError` if the destination cannot be written to.
        """

    @abstractmethod
    def write(self, query: str, number: int, rows: DataFrame) -> None:
        """Write one whole output, and return when it is durable; skip an output that is there already.

        Called in the order of numbers. After a crash between this call and headgate's own record of
        it, the output is repeated with the same query, number and rows. An exception ends the query.

        Parameters
        ----------
        query : str    Name of the query; the same for as long as the checkpoint exists.
        number : int    Number of the output; 0 or more.
        rows : DataFrame    Rows of `schema`, in no order, perhaps none.
        """

    def newest(self, query: str) -> int | None:
        """Return the number of a query's newest output in the sink; None without an output.

        Called once per start of a query that has run before. Outputs up to this number are not
        written again, and a checkpoint that is behind the number is refused. A sink without this
        method recognises repeated outputs in `write`.
        """
        del query
        return None


def guarantee_of_own(plugin: Plugin) -> str:
    """Return what an installed sink guarantees, in words."""
    by = _class_of(plugin).exactly_once
    return (
        f"exactly once: {by}"
        if by
        else "at least once: it does not tell an output that comes again"
    )


class OwnSink:
    """Writes the outputs of one query to the sink of an installed package.

    `stream`: the query as sinks see it. `newest_output`: returns the number of the newest output
    that may have been delivered, -1 for none.
    """

    inside = False

    def __init__(
        self, plugin: Plugin, sink: Sink, stream: WrittenStream, newest_output: Callable[[], int]
    ) -> None:
        self.description = f"{plugin.name}[{type(sink).__name__}]"
        self._plugin, self._sink, self._stream = plugin, sink, stream
        self._newest_output = newest_output
        self._there = -1
        self._run, self._written = "", 0

    def write_early(self) -> None:
        """Give every output a new number, since a repeated output may have other rows."""
        self._run = f"/{uuid.uuid4()}"

    def begin(self) -> None:
        """Open the sink, and ask for its newest output of this query.

        Raises `ConfigError`: the sink does not open; `CheckpointError`: the sink has an output that
        the checkpoint lacks.
        """
        with self._plugin.blamed("opened"):
            self._sink.begin()
            if self._run or not self._stream.has_run:
                return
            newest = self._sink.newest(self._stream.query_id)
        self._there = -1 if newest is None else newest
        known = self._newest_output()
        if self._there > known:
            msg = (
                f"{self._plugin} has output {self._there} of this query, and the checkpoint's newest is "
                f"{known}: it was put back; use the newest copy of it, or a new one."
            )
            raise CheckpointError(msg)

    def write(self, batch: int, frame: DataFrame) -> None:
        """Write the output, unless the sink has it already."""
        if batch <= self._there:
            return
        query, number = f"{self._stream.query_id}{self._run}", batch
        if self._run:
            number, self._written = self._written, self._written + 1
        with self._stream.numbered(batch, frame):
            self._sink.write(query, number, frame)


def own_sink(
    name: str, options: Mapping[str, str], mode: str, schema: StructType
) -> tuple[Plugin, Sink] | None:
    """Return the installed sink of that name, and its plugin; None if no package has such a sink.

    Raises `ConfigError`: the sink does not take an option or the mode, needs an option that is
    missing, or its package does not work.
    """
    plugin = installed(SINKS).get(name.lower())
    if plugin is None:
        return None
    kind = _class_of(plugin)
    if mode not in kind.output_modes:
        takes = " or ".join(kind.output_modes)
        msg = f'format "{plugin.name}" takes {takes} mode only; got {mode}.'
        raise ConfigError(msg)
    names = {option.lower(): option for option in kind.option_names}
    taken = {}
    for key, value in options.items():
        if key.lower() in names:
            taken[names[key.lower()]] = value
        elif key.lower() not in _OF_THE_WRITER:
            known = ", ".join(kind.option_names) or "none"
            told = nearest(key, kind.option_names) or f"; it takes {known}."
            msg = f'format "{plugin.name}" has no option "{key}"{told}'
            raise ConfigError(msg)
    for option in kind.required_options:
        if option not in taken:
            slip = instead_of(option, options)
            msg = f'format "{plugin.name}" needs option "{option}"; add .option("{option}", ...){slip}.'
            raise ConfigError(msg)
    with plugin.blamed("made"):
        return plugin, kind(taken, mode, schema)


def _class_of(plugin: Plugin) -> type[Sink]:
    """Import the class of an installed sink."""
    kind: type = plugin.load(type, "class")
    if not issubclass(kind, Sink):
        msg = f"{plugin} is the class {kind.__name__}; derive it from hg.Sink."
        raise ConfigError(msg)
    return kind
