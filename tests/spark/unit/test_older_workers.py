"""What Python workers of Spark 4.1 and 4.2 are told, byte for byte, and what comes of it."""

from __future__ import annotations

import io
import struct
import sys
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
from pyspark.util import PythonEvalType

from headgate.spark.jvm.older_workers import evaluate

BATCHES = [pa.record_batch({"v": [1, 2]}), pa.record_batch({"v": [3]})]
CALLS = [
    SimpleNamespace(args=[0, 2], kwargs={"n": 1}, command=b"first"),
    SimpleNamespace(args=[], kwargs={}, command=b"2nd"),
]
ZONE = {"zone": "UTC"}


def number(value: int) -> bytes:
    return struct.pack("!i", value)


def text(value: str) -> bytes:
    return number(len(value.encode())) + value.encode()


def calls(*, named: bool, behind: bytes) -> bytes:
    """Return the calls as a worker reads them: arguments, functions chained, and what is behind each."""
    position = b"\0" if named else b""
    first = [number(3), number(0), position, number(2), position, number(1), b"\1", text("n")]
    second = [number(0), number(1), text("2nd"), behind]
    return b"".join([number(2), *first, number(1), text("first"), behind, *second])


class Serializer:
    """Reads batches of Arrow and writes what comes, behind the mark that the JVM waits for."""

    def load_stream(self, stream: io.BytesIO) -> Any:
        return iter(pa.ipc.open_stream(stream))

    def dump_stream(self, batches: Any, out: io.BytesIO) -> None:
        writer = None
        for batch in batches:
            if writer is None:
                out.write(number(-4))
                writer = pa.ipc.new_stream(out, batch.schema)
            writer.write_batch(batch)
        if writer is not None:
            writer.close()


def evaluated(
    monkeypatch: pytest.MonkeyPatch, kind: int, inputs: str, batches: list[Any], **parts: Any
) -> tuple[bytes, list[Any], list[Any]]:
    """Return what a worker was told, the settings that it read first, and its results."""
    told: list[bytes] = []
    settings: list[Any] = []

    def read_udfs(serializer: str, stream: io.BytesIO, of_kind: int, *read: Any) -> Any:
        assert (serializer, of_kind, stream.tell()) == ("pickle", kind, 0)
        settings.extend(read)
        told.append(stream.getvalue())
        return (
            lambda split, values: values if split == 0 else None,
            None,
            Serializer(),
            Serializer(),
        )

    worker = SimpleNamespace(pickleSer="pickle", read_udfs=read_udfs, **parts)
    monkeypatch.setitem(sys.modules, "pyspark.worker", worker)
    results = list(evaluate(kind, CALLS, ZONE, inputs, iter(batches)))
    (whole,) = told
    return whole, settings, [batch.to_pydict() for batch in results]


def of_42() -> dict[str, Any]:
    return {"RunnerConf": lambda stream: "settings", "EvalConf": lambda stream: "inputs"}


@pytest.mark.parametrize(
    ("inputs", "pairs"),
    [("", number(0)), ("struct", number(1) + text("input_type") + text("struct"))],
)
def test_a_worker_of_42_is_told_of_inputs_names_and_numbers(
    inputs: str, pairs: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    kind = PythonEvalType.SQL_ARROW_BATCHED_UDF
    whole, settings, results = evaluated(monkeypatch, kind, inputs, BATCHES, **of_42())
    zone = number(1) + text("zone") + text("UTC")
    assert whole == zone + pairs + calls(named=True, behind=bytes(8))
    assert settings == ["settings", "inputs"]
    assert results == [{"v": [1, 2]}, {"v": [3]}]


@pytest.mark.parametrize(
    ("kind", "inputs", "named"),
    [
        (PythonEvalType.SQL_ARROW_BATCHED_UDF, text("struct"), True),
        (PythonEvalType.SQL_SCALAR_PANDAS_UDF, b"", True),
    ],
)
def test_a_worker_of_41_is_told_less(
    kind: int, inputs: bytes, named: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole, settings, _ = evaluated(monkeypatch, kind, "struct", BATCHES)
    zone = number(1) + text("zone") + text("UTC")
    assert whole == zone + inputs + b"\0" + calls(named=named, behind=b"")
    assert settings == []


def test_nothing_comes_of_no_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    kind = PythonEvalType.SQL_SCALAR_PANDAS_UDF
    assert evaluated(monkeypatch, kind, "", [], **of_42())[2] == []
