"""Writes the stream from which Python workers of an older PySpark, 4.1 or 4.2, read what to evaluate.

With these versions, a slot's input of a micro-batch is in memory a second time, as an Arrow stream,
and so is its output.
"""

from __future__ import annotations

import importlib
import io
import itertools
import struct
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa
from pyspark.util import PythonEvalType


def evaluate(
    kind: int,
    calls: Sequence[Any],
    settings: Mapping[str, str],
    inputs: str,
    batches: Iterator[pa.RecordBatch],
) -> Iterator[pa.RecordBatch]:
    """Return the results, a column for each function; called in a worker of Spark 4.1 or 4.2."""
    worker: Any = importlib.import_module("pyspark.worker")
    stream = io.BytesIO()
    if hasattr(worker, "EvalConf"):  # Spark 4.2
        _tell_of_pairs(stream, settings)
        _tell_of_pairs(stream, {"input_type": inputs} if inputs else {})
        _tell_of_calls(stream, calls, named=True, numbered=True)
        stream.seek(0)
        settings_read, inputs_read = worker.RunnerConf(stream), worker.EvalConf(stream)
        made = worker.read_udfs(worker.pickleSer, stream, kind, settings_read, inputs_read)
    else:
        _tell_of_pairs(stream, settings)
        if kind == PythonEvalType.SQL_ARROW_BATCHED_UDF:
            _tell_text(stream, inputs.encode())
        stream.write(b"\0")  # switches the profiler off
        _tell_of_calls(stream, calls, named=kind != PythonEvalType.SQL_MAP_PANDAS_ITER_UDF)
        stream.seek(0)
        made = worker.read_udfs(worker.pickleSer, stream, kind)
    function, _, reader, writer = made
    out = io.BytesIO()
    writer.dump_stream(function(0, _read(reader, batches)), out)
    if out.tell():
        out.seek(4)  # skips the mark for which the JVM waits
        yield from pa.ipc.open_stream(out)


def _read(reader: Any, batches: Iterator[pa.RecordBatch]) -> Iterator[Any]:
    first = next(batches, None)
    if first is None:
        return iter(())
    buffer = io.BytesIO()
    with pa.ipc.new_stream(buffer, first.schema) as stream:
        for batch in itertools.chain([first], batches):
            stream.write_batch(batch)
    buffer.seek(0)
    values: Iterator[Any] = reader.load_stream(buffer)
    return values


def _tell_of_pairs(stream: io.BytesIO, pairs: Mapping[str, str]) -> None:
    _tell(stream, len(pairs))
    for pair in pairs.items():
        for text in pair:
            _tell_text(stream, text.encode())


def _tell_of_calls(
    stream: io.BytesIO, calls: Sequence[Any], *, named: bool, numbered: bool = False
) -> None:
    """Write the functions: `named` if arguments may have names, `numbered` if results have numbers."""
    _tell(stream, len(calls))
    for call in calls:
        _tell(stream, len(call.args) + len(call.kwargs))
        for place in call.args:
            _tell(stream, place)
            if named:
                stream.write(b"\0")
        for name, place in call.kwargs.items():
            _tell(stream, place)
            stream.write(b"\1")
            _tell_text(stream, name.encode())
        _tell(stream, 1)  # number of chained functions
        _tell_text(stream, call.command)
        if numbered:
            stream.write(bytes(8))


def _tell_text(stream: io.BytesIO, text: bytes) -> None:
    _tell(stream, len(text))
    stream.write(text)


def _tell(stream: io.BytesIO, number: int) -> None:
    stream.write(struct.pack("!i", number))
