"""Runs ``transformWithStateInPandas`` as a processor, with PySpark's own functions for its frames.

Imported in Python workers; PySpark imports pandas only if such a processor runs.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql import types as T

from headgate.core.errors import ProcessorError
from headgate.operators.leaves import one_batch
from headgate.operators.processor import Keyed
from headgate.spark.jvm.frames import joined, to_rows, to_series
from headgate.spark.worker.user_processor import RowProcessor

_SETTINGS = {
    "timezone": "spark.sql.session.timeZone",
    "prefer_int_ext_dtype": "spark.sql.execution.pythonUDF.pandas.preferIntExtensionDtype",
    "safecheck": "spark.sql.execution.pandas.convertToArrowArraySafely",
    "assign_cols_by_name": "spark.sql.legacy.execution.pandas.groupedMap.assignColumnsByName",
    "int_to_decimal_coercion_enabled": (
        "spark.sql.execution.pythonUDF.pandas.intToDecimalCoercionEnabled"
    ),
}
"""Spark's settings that say how frames are made and read."""

_UNFIT = (PySparkException, pa.ArrowException, AttributeError, TypeError, ValueError)
"""Errors of a conversion from a value that is no frame, or has other types."""

_ON = {"assign_cols_by_name"}
"""Settings that are on by default."""


@dataclass
class PandasProcessor(RowProcessor):
    """Runs a processor of ``transformWithStateInPandas``, whose input and output are frames."""

    returns: T.StructType = field(default_factory=T.StructType)
    """Schema of the output."""
    settings: dict[str, Any] = field(default_factory=dict)
    """See `read`."""
    cut: bool = False
    """Whether a key's frame is a slice of all keys' columns, as in Spark's
    ``applyInPandasWithState``; then integers keep their width."""

    @staticmethod
    def read(spark: SparkSession) -> dict[str, Any]:
        """Return Spark's settings that say how frames are made and read."""
        settings: dict[str, Any] = {}
        for name, key in _SETTINGS.items():
            if name == "timezone":
                settings[name] = spark.conf.get(key)
            else:
                settings[name] = spark.conf.get(key, "true" if name in _ON else "false") == "true"
        return settings

    def _rows_by_key(self, keyed: Keyed, keys: int) -> Callable[[int], Iterator[Any]]:
        """Return a function from a key's position to its one frame."""
        made = self._cut(keyed.rows) if self.cut else self._made(keyed.rows)
        starts = keyed.starts(keys).tolist()

        def frames(key: int) -> Iterator[Any]:
            start, stop = starts[key], starts[key + 1]
            self._place = f"its {stop - start} records"
            yield made(start, stop)

        return frames

    def _made(self, rows: pa.RecordBatch) -> Callable[[int, int], Any]:
        """Return a function that makes a frame of a key's rows as Spark does.

        Integers have 64 bits, and nulls of other keys do not change the frame's types.
        """
        frame = self._frame(rows)
        names, values = list(frame.columns), list(frame.itertuples(index=False, name=None))
        return lambda start, stop: type(frame)(values[start:stop], columns=names)

    def _cut(self, rows: pa.RecordBatch) -> Callable[[int, int], Any]:
        """Return a function that slices a key's frame; with nulls, each frame is converted by itself."""
        if any(column.null_count for column in rows.columns):
            return lambda start, stop: self._frame(rows.slice(start, stop - start))
        frame = self._frame(rows)
        return lambda start, stop: frame.iloc[start:stop].reset_index(drop=True)

    def _key_values(self, keys: pa.RecordBatch) -> list[tuple[Any, ...]]:
        return list(self._frame(keys).itertuples(index=False, name=None))

    def _timer_keys(self, keys: pa.RecordBatch) -> list[tuple[Any, ...]]:
        """Return keys as Spark passes them with a timer: Python values, and times without a zone."""
        columns = [map(_without_zone, column.to_pylist()) for column in keys.columns]
        return list(zip(*columns, strict=True))

    def _frame(self, rows: pa.RecordBatch) -> Any:
        settings = self.settings
        series = to_series(
            rows, settings["timezone"], prefer_int_ext_dtype=settings["prefer_int_ext_dtype"]
        )
        frame = series[0].to_frame(rows.schema.names[0])
        for name, column in zip(rows.schema.names[1:], series[1:], strict=True):
            frame[name] = column
        return frame

    def _copied(self, row: Any) -> Any:
        return row.copy() if hasattr(row, "iloc") else row

    def _output(self, frames: list[Any]) -> pa.RecordBatch:
        if not frames:
            return pa.RecordBatch.from_pylist([], schema=self.outputs)
        try:
            return one_batch([self._rows(frame) for frame in joined(frames)])
        except _UNFIT:
            return one_batch(list(self._one_by_one(frames)))

    def _one_by_one(self, frames: list[Any]) -> Iterator[pa.RecordBatch]:
        """Yield the rows of each frame; the error names the frame that does not fit."""
        for number, frame in enumerate(frames):
            try:
                yield self._rows(frame)
            except _UNFIT:
                msg = (
                    f"frame {number + 1} of {len(frames)} that {self.name} put out does not fit its "
                    f"output schema {self.returns.simpleString()}."
                )
                raise ProcessorError(msg) from None

    def _rows(self, frame: Any) -> pa.RecordBatch:
        settings = self.settings
        return to_rows(
            frame,
            self.returns,
            timezone=settings["timezone"],
            safecheck=settings["safecheck"],
            assign_cols_by_name=settings["assign_cols_by_name"],
            int_to_decimal_coercion_enabled=settings["int_to_decimal_coercion_enabled"],
        )


def _without_zone(value: Any) -> Any:
    return value.replace(tzinfo=None) if isinstance(value, dt.datetime) else value
