"""Manifests of steps of pools: what waits, what goes out, and how deliveries are numbered."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from headgate.checkpoint.manifest import FileEntry, Manifest
from headgate.spark.job.pools import PoolConfig, PoolState
from headgate.spark.step.begun import Begun
from headgate.spark.step.commit import delivers, pool_manifest
from headgate.spark.step.output import Outputs

CONFIG = PoolConfig(1, 4, 2)


def begun(step: int, latest: Manifest | None = None, *, sources: Any = ("5",)) -> Begun:
    return Begun(step, step + 10, 0, list(sources), 0.0, 0.0, 0, drain=True, latest=latest)


def made(
    step: int, latest: Manifest | None = None, *, rows: int = 0, sources: Any = ("5",)
) -> Manifest:
    """Return the manifest of a step of one stage that puts out so many rows."""
    entries = [{"operator": "a", "rows": rows, "inline": "output-t"}] if rows else []
    outputs = Outputs(entries, {})
    at = begun(step, latest, sources=sources)
    payloads = {"output-t": b"rows", "output-inner": b"none of the last stage's"}
    states = {"a": PoolState.fresh(CONFIG)}
    return pool_manifest(at, "job", states, outputs, {}, payloads, lost=3)


def test_a_manifest_of_pools_has_their_state_and_the_last_stages_output() -> None:
    found = made(4, rows=2)
    assert (found.job, found.step, found.spark_batch, found.previous) == ("job", 4, 14, None)
    assert found.payloads == {"output-t": b"rows"}
    engine = found.engine
    assert engine["pools"]["a"]["active"] == [0, 1]
    assert (engine["sources"], engine["rest"], engine["lost"]) == (["5"], True, 3)
    assert engine["outputs"] == [{"operator": "a", "rows": 2, "inline": "output-t"}]
    latest: Any = SimpleNamespace(digest="abc", engine={"sink_batch": 7}, files=())
    assert made(5, latest, rows=2).previous == "abc"


@pytest.mark.parametrize(
    ("before", "rows", "sources", "number", "empty"),
    [
        (None, 2, ["5"], 0, None),
        (None, 0, ["5"], 0, True),
        (None, 0, [None], -1, None),
        (-1, 0, [None, "5"], 0, True),
        (3, 2, ["5"], 4, None),
        (3, 0, ["5"], 3, None),
    ],
)
def test_deliveries_alone_are_counted_and_the_first_input_is_one(
    before: int | None, rows: int, sources: Any, number: int, empty: bool | None
) -> None:
    """A file sink wants its batches numbered without gaps, and files with the schema at first."""
    latest: Any = None
    if before is not None:
        latest = SimpleNamespace(digest="abc", engine={"sink_batch": before}, files=())
    found = made(5, latest, rows=rows, sources=sources)
    assert (found.engine["sink_batch"], found.engine.get("empty")) == (number, empty)
    assert delivers(found) is bool(rows or empty)


def test_files_in_which_rows_wait_stay_named_as_long_as_they_do() -> None:
    old, gone, new = (FileEntry(f"backlog/{name}", 5, 6) for name in ("old", "gone", "new"))
    latest: Any = SimpleNamespace(digest="abc", engine={"sink_batch": 0}, files=(old, gone))
    state = PoolState.fresh(CONFIG)
    state.backlog = {0: [("old", 0, 3), ("new", 0, 1)], 1: []}
    found = pool_manifest(
        begun(5, latest), "job", {"a": state}, Outputs(), {new.name: new}, {}, lost=0
    )
    assert found.files == (old, new)
    assert found.engine["pools"]["a"]["backlog"] == {"0": [("old", 0, 3), ("new", 0, 1)]}
