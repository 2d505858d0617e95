"""Calls ``init`` of a PySpark ``StatefulProcessor`` on the driver, and records its declarations.

Spark does the same in a separate process when a query starts.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any, NoReturn

import pyarrow as pa
from pyspark.errors import PySparkException
from pyspark.sql import types as T
from pyspark.sql.streaming.stateful_processor import (
    ListState,
    MapState,
    StatefulProcessor,
    StatefulProcessorHandle,
    ValueState,
)

from headgate.core.errors import UnsupportedQuery
from headgate.operators.processor import TimeMode, Variable
from headgate.spark.jvm.arrow import to_arrow_schema
from headgate.spark.read.wording import WAY_OUT

_NOTHING = pa.schema([])
_CLIENT: Any = None
"""Client of PySpark's states; None, because a processor only declares states here."""


def declared(processor: StatefulProcessor, mode: TimeMode) -> dict[str, tuple[Any, ...]]:
    """Return the arguments of `Variable` after its name, by state variable.

    Raises `UnsupportedQuery`: ``init`` fails, or declares a state that headgate cannot keep.
    """
    # on a copy, because init may set attributes that a slot's processor must not have
    probe = copy.copy(processor)
    name = type(processor).__name__
    handle = _Declaring(name, mode)
    try:
        probe.init(handle)
    except UnsupportedQuery:
        raise
    except Exception as error:
        msg = (
            f"{name}.init failed with {type(error).__name__}: {error}; headgate calls it once "
            "when a query starts."
        )
        raise UnsupportedQuery(msg) from error
    probe.close()
    for state, fields in handle.states.items():
        Variable(state, *fields)
    return handle.states


class _Declaring(StatefulProcessorHandle):
    def __init__(self, name: str, mode: TimeMode) -> None:
        self.states: dict[str, tuple[Any, ...]] = {}
        self._name = name
        self._mode = mode

    def getValueState(
        self, stateName: str, schema: Any, ttlDurationMs: int | None = None
    ) -> ValueState:
        self._declare(stateName, _NOTHING, self._arrow(stateName, schema), ttlDurationMs, False)
        return ValueState(_CLIENT, stateName)

    def getListState(
        self, stateName: str, schema: Any, ttlDurationMs: int | None = None
    ) -> ListState:
        self._declare(stateName, _NOTHING, self._arrow(stateName, schema), ttlDurationMs, True)
        return ListState(_CLIENT, stateName)

    def getMapState(
        self, stateName: str, userKeySchema: Any, valueSchema: Any, ttlDurationMs: int | None = None
    ) -> MapState:
        entry, values = self._arrow(stateName, userKeySchema), self._arrow(stateName, valueSchema)
        self._declare(stateName, entry, values, ttlDurationMs, False)
        return MapState(_CLIENT, stateName)

    def deleteIfExists(self, stateName: str) -> None:
        self.states.pop(stateName, None)

    def registerTimer(self, expiryTimestampMs: int) -> None:
        self._refuse("registers a timer")

    def deleteTimer(self, expiryTimestampMs: int) -> None:
        self._refuse("deletes a timer")

    def listTimers(self) -> Iterator[int]:
        self._refuse("lists timers")

    def _refuse(self, what: str) -> NoReturn:
        msg = f"{self._name}.init {what}; do so in handleInputRows."
        raise UnsupportedQuery(msg)

    def _declare(
        self, name: str, entry: pa.Schema, values: pa.Schema, ttl_ms: int | None, ordered: bool
    ) -> None:
        if ttl_ms is not None and self._mode is not TimeMode.PROCESSING:
            msg = (
                f'state "{name}" of {self._name} has a time to live, which needs time mode '
                '"ProcessingTime"; change one of the two.'
            )
            raise UnsupportedQuery(msg)
        if not name or name in self.states:
            msg = f'{self._name}.init declares state "{name}" twice, or without a name.'
            raise UnsupportedQuery(msg)
        self.states[name] = (entry, values, ttl_ms, ordered)

    def _arrow(self, name: str, schema: Any) -> pa.Schema:
        try:
            kind = T.DataType.fromDDL(schema) if isinstance(schema, str) else schema
            if not isinstance(kind, T.StructType) or not kind.fields:
                msg = (
                    f'state "{name}" of {self._name} needs a struct with columns as its schema, '
                    f"got {kind}."
                )
                raise UnsupportedQuery(msg)
            return to_arrow_schema(kind, timezone="UTC")
        except PySparkException as error:
            first = str(error).splitlines()[0]
            msg = f'cannot keep state "{name}" of {self._name}: {first}; change its schema, {WAY_OUT}.'
            raise UnsupportedQuery(msg) from error
