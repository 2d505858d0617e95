"""Runs relational queries over generated files: a change of slots at any time, a restart in between."""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import answers
import pytest
from pyspark.sql import DataFrame, Row, SparkSession

import headgate as hg

Build = Callable[..., DataFrame]
"""From source DataFrames, streaming or not."""


def cases(names: Iterable[Any], shown: Iterable[Any]) -> list[Any]:
    """Return (name, changes) for a query undisturbed, and changed and restarted.

    The latter of the queries `shown` run always, all others with ``--thorough`` only.
    """
    return [
        pytest.param(
            name,
            changes,
            marks=[] if changes and name in shown else [pytest.mark.thorough],
            id=f"{name}-{'changed' if changes else 'unchanged'}",
        )
        for name in names
        for changes in (None, 7)
    ]


def put_out(
    spark: SparkSession, build: Build, folders: list[Path], place: Path, *, changes: int | None
) -> list[Row]:
    """Return what a query puts out.

    Parameters
    ----------
    build : callable
        Given one DataFrame per folder.
    folders : list of Path
        Of files as `answers.write_files` makes them.
    place : Path
        For sink, checkpoint and the files as they come.
    changes : int or None
        Seed of the changes while it runs; then there is a restart before the last file, too.
    """
    stages = [None] if changes is None else [answers.FILES - 1, None]
    arrived = [place / f"in{i}" for i in range(len(folders))]
    schema = None
    for stage in stages:
        for folder, target in zip(folders, arrived, strict=True):
            target.mkdir(parents=True, exist_ok=True)
            for file in sorted(folder.iterdir())[:stage]:
                if not (target / file.name).exists():
                    shutil.copy2(file, target / file.name)
        sources = [answers.source(spark, folder, stream=True) for folder in arrived]
        frame = build(*sources)
        schema = frame.schema
        made = hg.writeStream(frame).format("parquet").option("path", str(place / "out"))
        made = made.option("checkpointLocation", str(place / "checkpoint"))
        made = made.option("headgate.snapshotEvery", 3).keyGroups(16).slots(start=2)
        query = made.trigger(availableNow=True).start()
        if changes is not None:
            answers.change_at_random(query, random.Random(changes), key_groups=16)
        query.awaitTermination()
    assert schema is not None
    return spark.read.schema(schema).parquet(str(place / "out")).collect()


def batch_answer(spark: SparkSession, build: Build, folders: list[Path]) -> list[Row]:
    """Return Spark's own answer."""
    return build(*[answers.source(spark, folder, stream=False) for folder in folders]).collect()


def rows_of(spark: SparkSession, folder: Path) -> list[tuple[int, Any]]:
    """Return all records with the number of their batch, in the order of the files."""
    found = []
    for number, file in enumerate(sorted(folder.iterdir())):
        found += [(number, row) for row in spark.read.parquet(str(file)).collect()]
    return found
