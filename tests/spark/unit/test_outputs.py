"""Outputs of slots between a step and its sink: in the manifest, in files, in this process."""

from __future__ import annotations

import zlib
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import types as T

from headgate.checkpoint.checkpoint import Checkpoint
from headgate.checkpoint.manifest import FileEntry, Manifest
from headgate.core.errors import CheckpointError
from headgate.spark.job.reports import Payload
from headgate.spark.step import output
from headgate.spark.step.output import Outputs


def rows(*numbers: int) -> bytes:
    table, sink = pa.table({"n": pa.array(numbers, pa.int64())}), pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    made: bytes = sink.getvalue().to_pybytes()
    return made


def report(operator: str, token: str, payload: Payload | None, count: int) -> Any:
    return SimpleNamespace(operator=operator, token=token, output=payload, output_rows=count)


@pytest.fixture
def checkpoint(tmp_path: Path) -> Checkpoint:
    made = Checkpoint(tmp_path / "ck")
    made.open({"key_groups": 2})
    return made


@pytest.fixture
def reports(checkpoint: Checkpoint) -> list[Any]:
    """Return reports of three slots: rows in the report, rows in a file, and none."""
    data = rows(3)
    checkpoint.write_file("output", "f1", data)
    in_file = Payload(None, "f1", len(data), zlib.crc32(data))
    here = Payload(rows(1, 2), None, len(rows(1, 2)), zlib.crc32(rows(1, 2)))
    return [report("a", "t0", here, 2), report("a", "t1", in_file, 1), report("b", "t2", None, 0)]


def test_outputs_of_reports_can_be_read_before_and_after_their_commit(
    checkpoint: Checkpoint, reports: list[Any]
) -> None:
    outputs = Outputs.reported(reports)
    assert outputs.rows == 3
    table = outputs.table(checkpoint)
    assert table is not None
    assert table.to_pydict() == {"n": [1, 2, 3]}
    data = rows(3)
    entries = [
        {"operator": "a", "rows": 2, "inline": "output-t0"},
        {"operator": "a", "rows": 1, "file": "f1"},
    ]
    manifest = Manifest(
        "job", 0, 0, 0, {}, {}, {}, {}, engine={"outputs": entries},
        files=(FileEntry("output/f1", len(data), zlib.crc32(data)),),
        payloads={"output-t0": rows(1, 2), "another": b""},
    )  # fmt: skip
    assert Outputs.read(manifest) == outputs
    assert "crc32" not in entries[1], "what the manifest says is left as it is"


def test_a_manifest_in_the_making_gets_what_slots_put_out(reports: list[Any]) -> None:
    outputs = Outputs()
    payloads: dict[str, bytes] = {}
    files: dict[str, FileEntry] = {}
    for each in reports[:2]:
        outputs.add(each, payloads, files)
    assert payloads == {"output-t0": rows(1, 2)}
    assert files == {"output/f1": FileEntry("output/f1", len(rows(3)), zlib.crc32(rows(3)))}
    assert outputs.entries == [
        {"operator": "a", "rows": 2, "inline": "output-t0"},
        {"operator": "a", "rows": 1, "file": "f1"},
    ]
    assert outputs.inline == {}


def test_without_an_output_there_is_no_table(checkpoint: Checkpoint) -> None:
    assert Outputs().table(checkpoint) is None
    assert Outputs().rows == 0


def test_a_file_that_was_altered_is_refused_here_and_on_executors(
    checkpoint: Checkpoint, reports: list[Any]
) -> None:
    outputs = Outputs.reported(reports)
    [path] = (checkpoint.root / "output").iterdir()
    path.chmod(0o600)
    path.write_bytes(rows(4))
    with pytest.raises(CheckpointError, match="output file f1 was altered; see headgate inspect"):
        outputs.table(checkpoint)
    reader = output._ReadOutput(checkpoint.location)
    asked = {"i": [0], "file": ["f1"], "data": [None], "crc32": [zlib.crc32(rows(3))]}
    with pytest.raises(CheckpointError, match="output file f1 was altered"):
        list(reader(iter([pa.RecordBatch.from_pydict(asked)])))


def test_executors_read_rows_from_files_and_take_those_that_came_along(
    checkpoint: Checkpoint, reports: list[Any]
) -> None:
    del reports  # they have written a file
    asked = {
        "i": [0, 1], "file": ["f1", None], "data": [None, rows(1, 2)],
        "crc32": [zlib.crc32(rows(3)), None],
    }  # fmt: skip
    reader = output._ReadOutput(checkpoint.location)
    batches = list(reader(iter([pa.RecordBatch.from_pydict(asked)])))
    assert [batch.column("n").to_pylist() for batch in batches] == [[3], [1, 2]]


class Point(T.UserDefinedType):
    """A type of a library's own, which Spark stores as a struct."""

    @classmethod
    def sqlType(cls) -> T.DataType:
        return T.StructType([T.StructField("x", T.ArrayType(Inner(), containsNull=False))])


class Inner(T.UserDefinedType):
    """Another, which stands for a number."""

    @classmethod
    def sqlType(cls) -> T.DataType:
        return T.LongType()


def test_types_of_libraries_are_read_as_spark_stores_them_however_deep() -> None:
    numbers = T.ArrayType(T.LongType(), containsNull=False)
    stored = T.StructType([T.StructField("x", numbers)])
    given = T.StructType(
        [
            T.StructField("p", Point(), nullable=False),
            T.StructField("many", T.ArrayType(Point())),
            T.StructField("n", T.LongType()),
        ]
    )
    assert output._stored(given) == T.StructType(
        [
            T.StructField("p", stored, nullable=False),
            T.StructField("many", T.ArrayType(stored)),
            T.StructField("n", T.LongType()),
        ]
    )
