"""Files of a task: side by side on a store, there before its report says so, and read as written."""

from __future__ import annotations

import threading
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest

from headgate.checkpoint.checkpoint import Checkpoint
from headgate.checkpoint.manifest import FileEntry
from headgate.core.errors import CheckpointError
from headgate.spark.step.output import Outputs
from headgate.spark.worker.payloads import INLINE_BYTES, TaskFiles, payload, table_payload

LARGE = bytes(INLINE_BYTES)


class Store:
    """A checkpoint on a store, of which every write waits for another one."""

    files = SimpleNamespace(shared=True)

    def __init__(self) -> None:
        self.both = threading.Barrier(2, timeout=20.0)
        self.written: list[str] = []

    def write_file(self, kind: str, name: str, data: bytes) -> None:
        self.both.wait()
        if name == "bad":
            raise CheckpointError("the store refuses to write")
        self.written.append(f"{kind}/{name}")


def test_files_of_a_task_go_to_a_store_side_by_side() -> None:
    store: Any = Store()
    with TaskFiles(store, 64) as writes:
        first = payload(writes, "changelog", "a", LARGE)
        payload(writes, "output", "b", LARGE)
        assert payload(writes, "output", "c", b"small").data == b"small"
    assert sorted(store.written) == ["changelog/a", "output/b"]
    assert (first.name, first.length) == ("a", INLINE_BYTES)


def test_a_file_that_is_not_there_keeps_the_report_from_naming_it() -> None:
    store: Any = Store()

    def write() -> None:
        with TaskFiles(store, 64) as writes:
            payload(writes, "changelog", "a", LARGE)
            payload(writes, "output", "bad", LARGE)

    with pytest.raises(CheckpointError, match="refuses to write"):
        write()
    assert store.written == ["changelog/a"], "the other one is garbage"


def test_an_output_in_a_file_is_read_with_its_checksum_before_its_step_is_committed(
    tmp_path: Path,
) -> None:
    checkpoint = Checkpoint(tmp_path / "ck")
    checkpoint.open({})
    rows = [pa.table({"n": list(range(begin, begin + 5))}) for begin in (0, 5)]
    in_file = table_payload(checkpoint, "output", "a", rows[0], inline_bytes=0)
    inline = table_payload(checkpoint, "output", "b", rows[1])
    assert in_file is not None
    reports: Any = [
        SimpleNamespace(operator="op", output_rows=5, token=token, output=output)
        for token, output in (("a", in_file), ("b", inline), ("c", None))
    ]
    made = Outputs.reported(reports)
    table = made.table(checkpoint)
    assert table is not None
    assert (made.rows, table["n"].to_pylist()) == (10, list(range(10)))
    files: dict[str, FileEntry] = {}
    made.add(reports[0], {}, files)
    assert files == {"output/a": FileEntry("output/a", in_file.length, in_file.crc32)}
    reports[0].output = replace(in_file, crc32=in_file.crc32 ^ 1)
    with pytest.raises(CheckpointError, match="output file a was altered"):
        Outputs.reported(reports).table(checkpoint)


def test_on_a_disk_a_file_is_there_at_once(tmp_path: Path) -> None:
    checkpoint = Checkpoint(tmp_path / "ck")
    checkpoint.open({})
    with TaskFiles(checkpoint, 2) as writes:
        payload(writes, "output", "a", LARGE)
        assert checkpoint.read_file("output", "a") == LARGE
