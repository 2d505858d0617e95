"""Checks which logs of Spark's and which manifests belong together, and the words of a refusal."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from headgate.core.errors import CheckpointError
from headgate.spark.step import recovery


def manifest(batch: int = 5, **engine: Any) -> Any:
    return SimpleNamespace(spark_batch=batch, engine={"sources": ["9"], **engine})


class Log:
    """Spark's log: the offsets of batches."""

    def __init__(self, **offsets: list[str]) -> None:
        self.offsets: Callable[[int], list[str] | None] = lambda n: offsets.get(f"b{n}")


def continues(latest: Any, batch: int, **offsets: list[str]) -> None:
    log: Any = Log(**offsets)
    recovery.check_continues("/c", latest, batch, log)


def test_a_batch_with_other_data_than_the_committed_one_is_refused() -> None:
    recovery.check_same_data("/c", manifest(), 5, ["9"])
    with pytest.raises(
        CheckpointError, match=r"other data for batch 5 .* checkpoint /c was altered"
    ):
        recovery.check_same_data("/c", manifest(), 5, ["8"])


@pytest.mark.parametrize("batch", [5, 6, 8])
def test_a_log_may_go_on_at_the_batch_of_the_manifest_or_later(batch: int) -> None:
    continues(manifest(), batch)
    continues(manifest(), batch, b6=["9"], b7=["9"])


def test_a_log_that_is_behind_the_manifest_is_refused() -> None:
    with pytest.raises(
        CheckpointError, match=r"begins batch 4, headgate's state is of batch 5; the checkpoint /c"
    ):
        continues(manifest(), 4)


@pytest.mark.parametrize("batch", [6, 7])
def test_a_batch_with_data_that_no_manifest_covers_is_refused(batch: int) -> None:
    with pytest.raises(CheckpointError, match=f"has batch {batch} with data that no manifest"):
        continues(manifest(), 8, **{"b6": ["9"], "b7": ["9"], f"b{batch}": ["10"]})


def test_data_of_the_batch_that_begins_and_of_the_manifests_own_batch_is_not_compared() -> None:
    continues(manifest(), 8, b5=["1"], b8=["10"])


def test_only_the_first_batch_begins_without_a_manifest() -> None:
    recovery.check_begins("/c", 0)
    with pytest.raises(CheckpointError, match=r"begins batch 1, .* checkpoint /c lost its state"):
        recovery.check_begins("/c", 1)


def test_a_checkpoint_in_which_spark_committed_batches_needs_a_manifest(tmp_path: Path) -> None:
    recovery.check_has_state("/c", tmp_path)
    commits = tmp_path / "commits"
    commits.mkdir()
    for name in ("metadata", ".0.crc", "1.tmp"):
        (commits / name).touch()
    recovery.check_has_state("/c", tmp_path)
    (commits / "0").touch()
    with pytest.raises(CheckpointError, match="begins batch 1, and"):
        recovery.check_has_state("/c", tmp_path)
    for name in ("10", "9"):
        (commits / name).touch()
    with pytest.raises(CheckpointError, match="begins batch 11, and"):
        recovery.check_has_state("/c", tmp_path)


def test_stored_rows_have_the_columns_of_the_query() -> None:
    latest = manifest(columns={"a": "x int", "b": "y int"})
    recovery.check_columns("/c", latest, {"a": "x int", "new": "z int"}, "a backlog")
    recovery.check_columns("/c", manifest(), {"a": "x int"}, "a backlog")
    with pytest.raises(
        CheckpointError,
        match="checkpoint /c has a backlog of b with the columns `y int`, now `y long`; start",
    ):
        recovery.check_columns("/c", latest, {"a": "x int", "b": "y long"}, "a backlog")
