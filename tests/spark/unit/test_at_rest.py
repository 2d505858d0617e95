"""When a checkpoint of headgate's may be exported; no session is needed."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from headgate.checkpoint.manifest import Manifest
from headgate.core.errors import CheckpointError
from headgate.spark.plain import exporting, log
from headgate.spark.settings.query_settings import QuerySettings

NOTES = {"batchWatermarkMs": 5000, "batchTimestampMs": 7, "conf": {}}
OFFSET = '{"logOffset":3}'
ENGINE: dict[str, Any] = {
    "operators": {"aggregate-0": {"backlog": {}}},
    "sources": [OFFSET],
    "drain": False,
    "sink_batch": 4,
}
AT_REST = Manifest(
    job="j",
    step=3,
    spark_batch=10,
    epoch=0,
    assignments={},
    watermarks={"late_us": 0, "evict_us": 7_000_000},
    heads={},
    sections={},
    engine=ENGINE,
)


class FakeOrigin:
    """A checkpoint that has one manifest and one intent."""

    def __init__(self, manifest: Manifest | None, intent: dict[str, Any] | None = None) -> None:
        self._manifest, self._intent = manifest, intent

    def latest(self) -> Manifest | None:
        return self._manifest

    def read_intent(self, step: int) -> dict[str, Any] | None:
        assert step == AT_REST.step
        return self._intent


@pytest.fixture
def place(tmp_path: Path) -> Path:
    entry = log.LogEntry(10, NOTES, [OFFSET], 6000)
    log.begin(tmp_path, entry, ticks=True)
    log.commit(tmp_path, entry)
    return tmp_path


def at_rest(origin: Any, place: Path) -> log.LogEntry:
    latest, newest = exporting._at_rest(origin, place)
    assert latest is origin.latest()
    return newest


def test_the_watermark_is_the_one_up_to_which_all_is_out(place: Path) -> None:
    newest = at_rest(FakeOrigin(AT_REST), place)
    assert (newest.watermark_us, newest.next_watermark_ms) == (7_000_000, 7000)
    assert newest.offsets == [OFFSET]
    drained = replace(AT_REST, engine=ENGINE | {"drain": True})
    assert at_rest(FakeOrigin(drained, {"delivered": True}), place) == newest


@pytest.mark.parametrize(
    ("manifest", "text"),
    [
        (None, "has no committed step"),
        (
            replace(AT_REST, engine=ENGINE | {"operators": {"join-0": {"backlog": {"1": [[]]}}}}),
            "records wait for slots of join-0",
        ),
        (replace(AT_REST, spark_batch=11), "may not be with the sink"),
        (replace(AT_REST, engine=ENGINE | {"sources": ["{}"]}), "may not be with the sink"),
        (replace(AT_REST, engine=ENGINE | {"drain": True}), "may not be with the sink"),
    ],
)
def test_what_is_not_at_rest_is_refused(manifest: Manifest | None, text: str, place: Path) -> None:
    with pytest.raises(CheckpointError, match=text):
        at_rest(FakeOrigin(manifest), place)


def test_plain_spark_goes_on_as_the_sink_has_counted() -> None:
    none_yet = replace(AT_REST, engine=ENGINE | {"sink_batch": -1})
    files, calls = QuerySettings(), QuerySettings(function=print)
    assert exporting._last_batch(files, AT_REST) == 4
    assert exporting._last_batch(calls, none_yet) == 0
    with pytest.raises(CheckpointError, match="counts its batches from 0"):
        exporting._last_batch(files, none_yet)
