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
    """Base class of your own sink; `hg.writeStream(df).format(name)` finds it by its entry point.

    A subclass declares the options and output modes that it takes, and writes outputs. An output is
    the result of one step. Outputs are numbered without gaps for as long as the checkpoint exists, from
    0 or, after `hg.adopt`, from the next batch of the plain query. With ``.release("early")`` each start
    gives the query a new id, and numbers outputs from 0 again. Each start of a query makes one object,
    and one thread at a time calls its methods. See docs/own-sink.md.

    Attributes
    ----------
    options : mapping    The writer's options, by the names of `option_names`.
    mode : str    append, update or complete.
    schema : StructType    Columns of every output.
    """

    option_names: ClassVar[tuple[str, ...]] = ()
    """The options that the sink takes, in upper or lower case alike; other options are refused."""
    required_options: ClassVar[tuple[str, ...]] = ()
    """The options without which a query is refused."""
    output_modes: ClassVar[tuple[str, ...]] = ("append",)
    """The output modes that the sink takes."""
    exactly_once: ClassVar[str] = ""
    """A phrase that says how the sink skips or replaces a repeated output, for example ``each output
    replaces itself``. Empty if the destination has a repeated output twice."""

    def __init__(self, options: Mapping[str, str], mode: str, schema: StructType) -> None:
        self.options, self.mode, self.schema = options, mode, schema

    def begin(self) -> None:  # noqa: B027 -- a sink may have nothing to open
        """Open the destination; called before the other methods, when the checkpoint is locked.

        Raise `hg.ConfigError` if the destination cannot be written to.
        """

    @abstractmethod
    def write(self, query: str, number: int, rows: DataFrame) -> None:
        """Write one whole output, and return when it is durable; skip an output that is there already.

        Called in the order of numbers. After each call the checkpoint gets a note that the output is
        written. After a crash before this note, the output is repeated with the same query, number and
        rows; with ``.release("early")`` a repeated output has another query or number, and perhaps other
        rows. An exception ends the query.

        Parameters
        ----------
        query : str
            Id of the query, the same for as long as the checkpoint exists; with ``.release("early")`` a
            new id at each start.
        number : int    Number of the output; 0 or more.
        rows : DataFrame    Rows of `schema`, in no order, perhaps none.
        """

    def newest(self, query: str) -> int | None:
        """Return the number of a query's newest output in the sink; None without an output.

        Called once per start of a query that has run before, but not with ``.release("early")``. Outputs
        up to this number are not written again, and a checkpoint that is behind the number is refused. A
        sink without this method recognises repeated outputs in `write`.
        """
        del query
        return None


def guarantee_of_own(plugin: Plugin) -> str:
    """Return what an installed sink guarantees, in words."""
    by = _class_of(plugin).exactly_once
    return f"exactly once: {by}" if by else "at least once: it does not recognise a repeated output"


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
        """Prepare to write outputs under a new id of the query, numbered from 0; called before `begin`.

        A repeated output may have other rows, so the sink must not skip it.
        """
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
                f"{known}: the checkpoint was restored from an older copy; use the newest copy of the "
                "checkpoint, or a new checkpoint."
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
