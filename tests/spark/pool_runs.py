"""Queries of stages on pools of replicas: a source of files, a writer, what was put out."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

import headgate as hg

ROWS = 3000


# Made inside functions, so that they are pickled whole: workers do not find the tests' modules.
def _doubled():
    def doubled(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            yield pa.record_batch({"w": pc.multiply(batch.column("v"), 2)})

    return doubled


doubled = _doubled()


def _twice():
    def twice(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Put every row out twice, as a flatMap may."""
        for batch in batches:
            for _ in range(2):
                yield pa.record_batch({"x": batch.column("u")})

    return twice


twice = _twice()


def source(spark, directory, files=6):
    """A stream of `files` files, one per batch."""
    folder = directory / "in"
    folder.mkdir(exist_ok=True)
    for n in range(files):
        values = list(range(n * ROWS // files, (n + 1) * ROWS // files))
        path = folder / f"{n:03d}.parquet"
        pq.write_table(pa.table({"v": values}), path)
        os.utime(path, (n, n))  # the order in which they are read
    reader = spark.readStream.schema("v long").option("maxFilesPerTrigger", 1)
    return reader.parquet(str(folder))


def pooled(df, directory, **slots):
    return (
        hg.writeStream(df)
        .policy("psps")
        .slots(**({"min": 1, "max": 4, "start": 2} | slots))
        .format("parquet")
        .option("path", str(directory / "out"))
        .option("checkpointLocation", str(directory / "checkpoint"))
        .option("headgate.replicas.interval", "1 s")
    )


def put_out(spark, directory, column):
    rows = spark.read.parquet(str(directory / "out")).collect()
    return Counter(row[column] for row in rows)
