"""A source of written files for queries in both modes; a test says how many files there are by now.

All streams of a query come in step: an epoch, as a batch, has the same files of each.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

import grammar_data
import pyarrow as pa
import pytest
from pyspark import cloudpickle
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.types import StructType

from headgate.core.installed import SOURCES, Plugin, installed
from headgate.spark.realtime import source_feeds

# workers do not have this file
cloudpickle.register_pickle_by_value(sys.modules[__name__])

NAME = "written_files"
MOST = 64
"""Files of a stream at the most."""


def prepare(spark: SparkSession, folder: Path) -> None:
    """Keep the files of `grammar_data.write` as Arrow, too."""
    for name, schema in (("events", grammar_data.EVENTS), ("clicks", grammar_data.CLICKS)):
        for number in range(grammar_data.FILES):
            read = spark.read.schema(schema).json(str(folder / name / f"{number}.json"))
            keep(folder, name, number, read.coalesce(1).toArrow())


def keep(folder: Path, stream: str, number: int, table: pa.Table) -> None:
    """Keep a file of a stream."""
    folder.mkdir(parents=True, exist_ok=True)
    with pa.OSFile(str(folder / f"{stream}-{number}.arrow"), "wb") as out:
        with pa.ipc.new_stream(out, table.schema) as writer:
            writer.write_table(table)


def install(monkeypatch: pytest.MonkeyPatch, spark: SparkSession) -> None:
    """Have both modes know the source."""
    spark.dataSource.register(WrittenFiles)
    entry = EntryPoint(NAME, f"{__name__}:WrittenFiles", SOURCES)
    known = {**installed(SOURCES), NAME: Plugin("source", NAME, (entry,))}
    monkeypatch.setattr(source_feeds, "installed", lambda _: known)


@dataclass(frozen=True)
class Released:
    """How many files of each stream there are by now, in one run of a query."""

    folder: Path

    @property
    def files(self) -> int:
        return int((self.folder / "released").read_text())

    def release(self, files: int) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        made = self.folder / "released.tmp"
        made.write_text(str(files))
        made.rename(self.folder / "released")

    def together(self, streams: Iterable[str]) -> None:
        """Say which streams come in step."""
        (self.folder / "streams").write_text(json.dumps(sorted(set(streams))))

    def meet(self, stream: str, number: int) -> None:
        """Wait until all streams are about to pass on a file."""
        (self.folder / f"at-{stream}-{number}").touch()
        others = json.loads((self.folder / "streams").read_text())
        while not all((self.folder / f"at-{one}-{number}").exists() for one in others):
            time.sleep(0.001)

    def left(self, stream: str, number: int) -> None:
        """Forget that a stream has met others from a file on, since it reads again from there."""
        for later in range(number, MOST):
            (self.folder / f"at-{stream}-{later}").unlink(missing_ok=True)


@dataclass(frozen=True)
class Given(grammar_data.Given):
    """What a generated query may read, by this source."""

    run: Path = Path()

    def _read(self, name: str, schema: str, time: str) -> DataFrame:
        if not self.stream:
            return super()._read(name, schema, time)
        return stream(self.spark, self.folder, self.run, name, schema)


def stream(spark: SparkSession, folder: Path, run: Path, name: str, schema: str) -> DataFrame:
    """Return a stream of files; its schema is text, or JSON."""
    options = {"schema": schema, "folder": str(folder), "run": str(run), "stream": name}
    return spark.readStream.format(NAME).options(**options).load()


def _file(number: int) -> str:
    return json.dumps({"file": number})


def _number(offsets: str | Mapping[str, int]) -> int:
    return int((json.loads(offsets) if isinstance(offsets, str) else offsets)["file"])


@dataclass(frozen=True)
class _Files:
    """The files of a stream; its readers and its feed share it."""

    folder: str
    run: str
    stream: str

    def table(self, number: int) -> pa.Table:
        with pa.OSFile(f"{self.folder}/{self.stream}-{number}.arrow", "rb") as source:
            return pa.ipc.open_stream(source).read_all()

    @property
    def released(self) -> Released:
        return Released(Path(self.run))


@dataclass(frozen=True)
class WrittenFeed:
    """Reads files for a pipe, one in each epoch."""

    files: _Files
    readers: int = 1
    keeps_first: bool = False

    @property
    def schema(self) -> pa.Schema:
        return self.files.table(0).schema

    def first(self) -> str:
        return _file(0)

    def grown(self, offsets: str) -> str:
        return offsets

    def newest(self, since: str) -> str:
        del since
        return _file(self.files.released.files)

    def reader(self, start: str, number: int, count: int) -> Any:
        del number, count
        return _Reader(self.files, _number(start))

    def merged(self, parts: Iterable[str]) -> str:
        (only,) = parts
        return only

    def reached(self, offsets: str, wanted: str) -> bool:
        return _number(offsets) >= _number(wanted)


class _Reader:
    def __init__(self, files: _Files, number: int) -> None:
        self.files, self.number = files, number
        self.is_cut = True
        files.released.left(files.stream, number)

    def poll(self, timeout_s: float) -> pa.RecordBatch | None:
        if not self.is_cut or self.files.released.files <= self.number:
            time.sleep(timeout_s)
            return None
        self.files.released.meet(self.files.stream, self.number)
        (batch,) = self.files.table(self.number).combine_chunks().to_batches()
        self.number += 1
        self.is_cut = False
        return batch

    def offsets(self) -> str:
        self.is_cut = True
        return _file(self.number)

    def close(self) -> None:
        """Nothing to give back."""


class _Batches(DataSourceStreamReader):
    def __init__(self, files: _Files) -> None:
        self.files = files

    def initialOffset(self) -> dict[str, int]:
        return {"file": 0}

    def latestOffset(self, *_: Any) -> dict[str, int]:
        return {"file": self.files.released.files}

    def partitions(self, start: Any, end: Any) -> Sequence[InputPartition]:
        return [InputPartition(n) for n in range(_number(start), _number(end))]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        yield from self.files.table(partition.value).to_batches()


class WrittenFiles(DataSource):
    """The source, as Spark knows it."""

    @classmethod
    def name(cls) -> str:
        return NAME

    @classmethod
    def feed(cls, options: Mapping[str, str]) -> WrittenFeed:
        return WrittenFeed(_files(options))

    def schema(self) -> Any:
        given = str(self.options["schema"])
        return StructType.fromJson(json.loads(given)) if given.startswith("{") else given

    def streamReader(self, schema: Any) -> DataSourceStreamReader:
        del schema
        return _Batches(_files(self.options))


def _files(options: Mapping[str, str]) -> _Files:
    return _Files(options["folder"], options["run"], options["stream"])
