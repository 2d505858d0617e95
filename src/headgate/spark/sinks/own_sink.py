"""Defines the port of a sink that an installed package brings, and writes a query's outputs to one."""

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
"""Options that stand among a sink's and are none of its own."""


class Sink(ABC):
    """A sink of your own: the format of `hg.writeStream(df).format(name)`, by an entry point.

    A class derived from this one says which options and output modes it takes, and writes outputs.
    An output is the result of one step; outputs are numbered 0, 1, 2 and so on for as long as the
    checkpoint lives. Each start of a query makes one object, which one thread at a time calls. See
    docs/own-sink.md.

    Attributes
    ----------
    options : mapping    The writer's options by the names of `option_names`, in whatever case given.
    mode : str    append, update or complete.
    schema : StructType    Columns of every output.
    """

    option_names: ClassVar[tuple[str, ...]] = ()
    """The options that it takes; others are refused by name."""
    required_options: ClassVar[tuple[str, ...]] = ()
    """Those of them without which a query is refused."""
    output_modes: ClassVar[tuple[str, ...]] = ("append",)
    """The output modes that it takes."""
    exactly_once: ClassVar[str] = ""
    """How an output that comes again is told or replaced, as in ``each output replaces itself``;
    empty for a sink that has it twice then."""

    def __init__(self, options: Mapping[str, str], mode: str, schema: StructType) -> None:
        self.options, self.mode, self.schema = options, mode, schema

    def begin(self) -> None:  # noqa: B027 -- a sink may have nothing to open
        """Open the destination; called before anything else, while the query holds its checkpoint.

        Raise `hg.ConfigError` where it cannot be written to.
        """

    @abstractmethod
    def write(self, query: str, number: int, rows: DataFrame) -> None:
        """Write one output whole, and return when it is durable; write nothing of one that is there.

        Called in the order of numbers. An output that comes again, after a crash between this call
        and headgate's own note of it, has the same query, number and rows. What it raises ends the
        query.

        Parameters
        ----------
        query : str    Names the query for as long as its checkpoint lives.
        number : int    The output's; 0 or more.
        rows : DataFrame    Rows of `schema`, in no order, perhaps none.
        """

    def newest(self, query: str) -> int | None:
        """Return the number of the newest output of a query that is there; None for none.

        Asked once per start of a query that has run before. Outputs up to this number are not
        computed again, and a checkpoint that is behind it is refused. Without this method
        everything is left to `write`.
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
    """Writes the outputs of one query to a sink that a package brings.

    `stream`: the query as its sinks know it. `newest_output`: returns the number of the newest
    output that may have been delivered, -1 for none.
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
        """Have every output count as a new one: what comes again may have other rows."""
        self._run = f"/{uuid.uuid4()}"

    def begin(self) -> None:
        """Open the sink, and ask which outputs of this query it has.

        Raises `ConfigError`: it does not open; `CheckpointError`: it has an output that the
        checkpoint does not know of.
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
        """Write the output, unless the sink has it."""
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
    """Return the installed sink of that name, and its plugin; None where no package brings it.

    Raises `ConfigError`: it does not take an option or the mode, lacks an option, or its package
    does not work.
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
