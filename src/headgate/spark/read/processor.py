"""Reads one ``transformWithState`` node: key, processor, time mode and output."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

from pyspark.errors import PySparkRuntimeError
from pyspark.sql import Column
from pyspark.sql import functions as F
from pyspark.sql import types as T
from pyspark.sql.streaming.stateful_processor import StatefulProcessor

from headgate.core.calls import refuse_call, uses_name
from headgate.core.errors import ConfigError, UnsupportedQuery
from headgate.core.frames import users_level
from headgate.operators.processor import Processor, ProcessorSpec, TimeMode
from headgate.operators.spec import NO_TIME_US
from headgate.spark.jvm.arrow import to_arrow_schema
from headgate.spark.jvm.expressions import column, data_type
from headgate.spark.jvm.gateway import Jvm, each
from headgate.spark.jvm.groupstates import BY_EVENT_TIME
from headgate.spark.jvm.plans import placeholder
from headgate.spark.jvm.userfunctions import function_of, processor_of, takes_frames
from headgate.spark.read import types
from headgate.spark.read.declaration import declared
from headgate.spark.read.expressions import WATERMARK
from headgate.spark.read.order import positions
from headgate.spark.read.plan import InitialState, Passed, PlannedOperator, Routed
from headgate.spark.read.reading import Given, NodeReader, Reading, Taken
from headgate.spark.read.wording import WAY_OUT
from headgate.spark.worker.arrow_processor import ArrowProcessor
from headgate.spark.worker.group_state import GroupStateProcessor
from headgate.spark.worker.pandas_processor import PandasProcessor
from headgate.spark.worker.user_processor import RowProcessor
from headgate.spark.worker.window_processor import WindowProcessor

_TIME_MODES = {
    "NoTime": TimeMode.NONE,
    "ProcessingTime": TimeMode.PROCESSING,
    "EventTime": TimeMode.EVENT,
}


_OF_KEYS = ("keys", "batch", "state", "timers")
"""Positional arguments of the methods of an `ArrowProcessor`."""

_OF_KEY = ("key", "rows", "timerValues")
"""Positional arguments that Spark passes to ``handleInputRows`` and ``handleInitialState``."""

_OF_TIMERS = ("key", "timerValues", "expiredTimerInfo")
"""Keyword arguments that Spark passes to ``handleExpiredTimer``."""


class _ProcessorReader:
    """Reads one node."""

    def __init__(self, reading: Reading, node: Jvm, upstream: PlannedOperator | None) -> None:
        self.reading = reading
        self.upstream = upstream
        self.spark = reading.spark
        self.node = node
        self.child = node.child()
        self.grouping = self._grouping()
        self.read_columns = self._columns_read()
        self.inputs = {a.name(): a for a in self.read_columns}
        self.zone = self.spark.conf.get("spark.sql.session.timeZone")
        self.time_mode = self._time_mode()

    # -- differs by kind of node ---------------------------------------------------------------------

    def _grouping(self) -> list[Jvm]:
        return list(each(self.node.leftAttributes()))

    def _columns_read(self) -> list[Jvm]:
        # Spark puts the key before the stream's columns, and a processor gets only these columns
        return list(each(self.child.output()))[len(self.grouping) :]

    def _time_mode(self) -> TimeMode:
        return _TIME_MODES[self.node.timeMode().toString()]

    def _user(self) -> object:
        return _given(self.node)

    @property
    def _has_initial(self) -> bool:
        return bool(self.node.hasInitialState())

    def _takes_frames(self) -> bool:
        return takes_frames(self.node)

    # -- the operator --------------------------------------------------------------------------------

    def read(self) -> PlannedOperator:
        """Return the operator that the node becomes."""
        user = self._user()
        outputs = _struct(each(self.node.output()))
        processor = self._processor(user, outputs)
        names = [attribute.name() for attribute in self.grouping]
        keys = self._keys(processor, self.grouping, user)
        if isinstance(user, ArrowProcessor) and user.keys.names != names:
            raise UnsupportedQuery(_other_keys(user, names))
        event_time = self._event_time()
        spec = ProcessorSpec(
            keys=tuple(key.leaf for key in keys),
            outputs=to_arrow_schema(outputs, timezone="UTC"),
            processor=processor,
            name=_name(user),
            mode=self.reading.mode,
            time_mode=self.time_mode,
            filters=event_time is not None,
            order=self._order(user, processor),
        )
        hole = placeholder(self.spark, outputs, self.node.output())
        raw = [T.StructField(f"v{i}", x.dataType) for i, x in enumerate(outputs)]
        return self.reading.operator(
            "processor",
            f"{_name(user)} keys {', '.join(names)}",
            spec,
            taken=Taken(
                plan=self.child,
                keys=keys,
                values=self._values(processor.inputs, self.read_columns, "v", user),
                key_names=names,
                slice_start=event_time,
                arrival=self.reading.arrived(self.inputs.values(), self.upstream),
                initial=self._initial(processor, user),
            ),
            given=Given(hole, hole, T.StructType(raw)),
            upstream=self.upstream,
        )

    def _order(self, user: object, processor: Processor) -> tuple[int, ...]:
        """Return the positions of the columns that order a key's rows; O+ orders its rows itself."""
        if isinstance(user, WindowProcessor):
            return ()
        return positions(self.reading.ordered, list(processor.inputs.names))

    def _processor(self, user: object, outputs: T.StructType) -> Processor:
        """Return the user's processor in the form that slots call."""
        name = type(user).__name__
        pandas = self._takes_frames()
        self._check_calls(user)
        if isinstance(user, ArrowProcessor):
            missing = [a for a in ("keys", "inputs") if not hasattr(user, a)]
            if missing:
                msg = f"{name} declares no {' and no '.join(missing)}; see hg.ArrowProcessor."
                raise UnsupportedQuery(msg)
            if pandas:
                msg = f"cannot run {name} with pandas: it takes Arrow; use transformWithState."
                raise UnsupportedQuery(msg)
            return user
        if not isinstance(user, StatefulProcessor):
            msg = f"cannot run {name} elastically: it is no StatefulProcessor, {WAY_OUT}."
            raise UnsupportedQuery(msg)
        given: dict[str, Any] = {
            "processor": user,
            "keys": self._arrow(_struct(self.grouping)),
            "inputs": self._arrow(_struct(self.read_columns)),
            "initial": self._arrow(_struct(self._initial_columns())),
            "outputs": to_arrow_schema(outputs, timezone="UTC"),
            "states": declared(user, self.time_mode),
            "mode": self.time_mode,
        }
        if not self._has_initial:
            given["initial"] = to_arrow_schema(T.StructType([]))
        if not pandas:
            return RowProcessor(**given)
        return PandasProcessor(
            **given,
            returns=outputs,
            settings=PandasProcessor.read(self.spark),
            cut=isinstance(user, GroupStateProcessor),
        )

    def _check_calls(self, user: object) -> None:
        """Refuse methods that Spark's arguments do not fit, except methods that Spark never calls.

        A wrong handler of timers only causes a warning, because timers may never expire. Raises
        `ConfigError`.
        """
        name = _name(user)
        timed = self.time_mode is not TimeMode.NONE
        if isinstance(user, GroupStateProcessor):
            refuse_call(user.function, name, "key", "frames", "state")
        elif isinstance(user, ArrowProcessor):
            refuse_call(user.handleBatch, f"{name}.handleBatch", *_OF_KEYS)
            if timed:
                refuse_call(user.handleExpired, f"{name}.handleExpired", *_OF_KEYS)
            if self._has_initial:
                refuse_call(user.handleInitial, f"{name}.handleInitial", *_OF_KEYS)
        elif isinstance(user, StatefulProcessor):
            refuse_call(user.init, f"{name}.init", "handle")
            refuse_call(user.close, f"{name}.close")
            refuse_call(user.handleInputRows, f"{name}.handleInputRows", *_OF_KEY)
            if self._has_initial:
                refuse_call(user.handleInitialState, f"{name}.handleInitialState", *_OF_KEY)
            if timed and uses_name(type(user), "registerTimer"):
                what = f"{name}.handleExpiredTimer"
                try:
                    refuse_call(user.handleExpiredTimer, what, named=_OF_TIMERS)
                except ConfigError as error:
                    text = f"{str(error).rstrip('.')}, or the query fails when a timer expires."
                    warnings.warn(text, stacklevel=users_level())

    def _arrow(self, schema: T.StructType) -> Any:
        """Return the Arrow schema of rows of `schema` in a slot, in the session's time zone."""
        return to_arrow_schema(schema, timezone=self.zone)

    def _keys(self, processor: Processor, grouping: list[Jvm], user: object) -> list[Routed]:
        if len(processor.keys) != len(grouping):
            raise UnsupportedQuery(_other_keys(processor, [a.name() for a in grouping]))
        keys: list[Routed] = []
        for attribute in grouping:
            kind, what = data_type(attribute.dataType()), f"key {attribute.name()}"
            for leaf, part in types.leaves(kind, column(self.spark, attribute), what):
                keys.append(Routed(f"k{len(keys)}", leaf, types.normalised(leaf, part)))
        return keys

    def _values(self, wanted: Any, output: Any, prefix: str, user: object) -> list[Passed]:
        """Return the columns that an `ArrowProcessor` names; all columns for other processors."""
        attributes = list(output)
        if not isinstance(user, ArrowProcessor):
            # by position, because names may be duplicate
            return [Passed(f"{prefix}{i}", column(self.spark, a)) for i, a in enumerate(attributes)]
        there = {a.name(): a for a in attributes}
        values = []
        for index, name in enumerate(wanted.names):
            if name not in there:
                msg = (
                    f'{type(user).__name__} reads column "{name}", which the stream lacks; it has '
                    f"{', '.join(there)}."
                )
                raise UnsupportedQuery(msg)
            values.append(Passed(f"{prefix}{index}", column(self.spark, there[name])))
        return values

    def _initial(self, processor: Processor, user: object) -> InitialState | None:
        node = self.node
        if not self._has_initial:
            return None
        keys = self._keys(processor, list(each(node.rightAttributes())), user)
        values = self._values(processor.initial, self._initial_columns(), "i", user)
        return InitialState(node.initialState(), keys, values)

    def _initial_columns(self) -> list[Jvm]:
        """Return the columns of the initial state without the key before them."""
        if not self._has_initial:
            return []
        keys = len(list(each(self.node.rightAttributes())))
        return list(each(self.node.initialState().output()))[keys:]

    def _event_time(self) -> Column | None:
        """Return a record's event time in us; None if Spark drops no late records in this time mode."""
        if self.time_mode is not TimeMode.EVENT:
            return None
        for attribute in each(self.child.output()):
            if attribute.metadata().contains(WATERMARK):
                value = column(self.spark, attribute)
                if isinstance(data_type(attribute.dataType()), T.StructType):
                    value = value.getField("end")
                return F.coalesce(F.unix_micros(value), F.lit(NO_TIME_US))
        return None


def _other_keys(processor: Processor, grouping: list[str]) -> str:
    declared = ", ".join(processor.keys.names)
    grouped = ", ".join(grouping)
    return (
        f"{type(processor).__name__} declares the keys {declared}, the query groups by {grouped}; "
        "make them agree."
    )


def _struct(attributes: Any) -> T.StructType:
    return T.StructType([T.StructField(a.name(), data_type(a.dataType())) for a in attributes])


def _given(node: Jvm) -> object:
    """Return the user's processor of ``transformWithState``."""
    return _unpacked(processor_of, node)


def _unpacked(read: Callable[[Jvm], Any], node: Jvm) -> Any:
    try:
        return read(node)
    except PySparkRuntimeError as error:  # PySpark has broadcast a large processor, and dropped it
        msg = (
            "cannot run a processor that takes more than 1 MB with all that it holds; let it read what "
            f"is large from a file when it is called, {WAY_OUT}."
        )
        raise UnsupportedQuery(msg) from error


def _read(reading: Reading, node: Jvm, upstream: PlannedOperator | None) -> PlannedOperator:
    if node.hasInitialState() and node.initialState().isStreaming():
        msg = (
            "cannot run a processor with an initial state that is a stream; read it as a table, "
            f"{WAY_OUT}."
        )

        raise UnsupportedQuery(msg)
    return _ProcessorReader(reading, node, upstream).read()


class _GroupStateReader(_ProcessorReader):
    """Reads one node of ``applyInPandasWithState``."""

    def _grouping(self) -> list[Jvm]:
        return list(each(self.node.groupingAttributes()))

    def _columns_read(self) -> list[Jvm]:
        # this node leaves the key among the stream's columns
        return list(each(self.child.output()))

    def _time_mode(self) -> TimeMode:
        # processing time also without a timeout, because the function may ask for the time
        timed = self._timeout == BY_EVENT_TIME
        return TimeMode.EVENT if timed else TimeMode.PROCESSING

    @property
    def _timeout(self) -> str:
        name = str(self.node.timeout().toString())
        return name.removesuffix("$")

    @property
    def _has_initial(self) -> bool:
        return False

    def _takes_frames(self) -> bool:
        return True

    def _user(self) -> object:
        state = data_type(self.node.stateType())
        assert isinstance(state, T.StructType)
        return GroupStateProcessor(
            _unpacked(function_of, self.node),
            state,
            [attribute.name() for attribute in self.read_columns],
            self._timeout,
            any(a.metadata().contains(WATERMARK) for a in each(self.child.output())),
        )


def _name(user: object) -> str:
    """Return the name of the user's code for messages."""
    if isinstance(user, GroupStateProcessor):
        return f"applyInPandasWithState {getattr(user.function, '__name__', 'function')}"
    return type(user).__name__


def _read_group_state(
    reading: Reading, node: Jvm, upstream: PlannedOperator | None
) -> PlannedOperator:
    return _GroupStateReader(reading, node, upstream).read()


READER = NodeReader(("TransformWithStateInPySpark",), _read)
GROUP_STATE_READER = NodeReader(("FlatMapGroupsInPandasWithState",), _read_group_state)
