"""What is made of Kafka's offsets: where a job began and came to, and how far it is behind."""

from __future__ import annotations

import json
import zlib
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from headgate.checkpoint.manifest import FileEntry, Manifest
from headgate.journal.schema import Batch
from headgate.spark.api.verify import carried_offsets, carried_starts, kafka_range, start_offsets
from headgate.spark.step.progress import Progress, lag_of


def test_a_partition_that_was_made_later_is_read_from_its_beginning() -> None:
    until = json.dumps({"a": {"0": 70, "1": 9}, "b": {"0": 4}})
    since, ends = kafka_range(json.dumps({"a": {"0": 50}}), until)
    assert json.loads(since) == {"a": {"0": 50, "1": -2}, "b": {"0": -2}}
    assert ends == until


def test_without_a_note_of_its_beginning_a_topic_is_read_whole() -> None:
    since, _ = kafka_range(None, json.dumps({"a": {"0": 70}}))
    assert json.loads(since) == {"a": {"0": -2}}


def test_where_a_source_began_is_read_as_spark_writes_it(tmp_path: Path) -> None:
    place = tmp_path / "sources" / "1"
    place.mkdir(parents=True)
    (place / "0").write_bytes(b'\0v1\n{"a":{"0":50}}')
    assert start_offsets(tmp_path, 3) == [None, '{"a":{"0":50}}', None]


def test_lag_is_what_kafka_has_and_the_batch_did_not_read() -> None:
    kafka = {
        "endOffset": {"a": {"0": 10, "1": 20}},
        "latestOffset": {"a": {"0": 15, "1": 20, "2": 7}, "new": {"0": 3}},
    }
    others: list[dict[str, Any]] = [
        {"endOffset": 5, "latestOffset": 9},
        {"endOffset": {"event": 5}, "latestOffset": {"event": 9}},
        {"endOffset": None, "latestOffset": None},
    ]
    # of a partition that no batch has read from, nobody knows where it begins
    assert lag_of([*others, kafka]) == {"a-0": 5, "a-1": 0, "a-2": 0}


def test_the_lag_is_that_of_the_newest_batch_told_of() -> None:
    progress = Progress()

    def told(batch: int, behind: int) -> None:
        source = {"endOffset": {"a": {"0": 1}}, "latestOffset": {"a": {"0": 1 + behind}}}
        found = {"batchId": batch, "sources": [source, {}], "sink": {}, "stateOperators": []}
        progress.filled(found)

    told(4, 7)
    told(5, 3)
    told(4, 7)
    assert progress.lag == {"a-0": 3}


def test_what_no_batch_has_read_is_told_in_rows_of_the_operators() -> None:
    progress = Progress()
    nothing = SimpleNamespace(description="")
    progress.begin(SimpleNamespace(conf={}), nothing)  # type: ignore[arg-type]

    def done(batch: int, arrived: int) -> None:
        own = Batch(batch, batch, 0, 1, 0.0, {}, arrived, 0, 0, 0, 0, 0, 0)
        progress.add(own, [], emitted=0)

    def told(batch: int, start: int | None, end: int, newest: int) -> None:
        offsets = {"startOffset": start, "endOffset": end, "latestOffset": newest}
        source = {k: None if o is None else {"a": {"0": o}} for k, o in offsets.items()}
        found = {"batchId": batch, "sources": [source, {}], "sink": {}, "stateOperators": []}
        progress.filled(found)

    assert progress.unread == 0.0
    done(4, 100)
    told(4, None, 100, 1000)  # the first batch: nobody knows yet how many rows a record is
    assert progress.unread == 900.0
    done(5, 50)  # half of the records are filtered away
    assert progress.unread == 850.0  # what the batch has read is not waiting any more
    told(5, 100, 200, 1100)
    assert progress.unread == 450.0
    done(6, 450)
    assert progress.unread == 0.0
    told(6, 200, 1100, 1100)
    assert progress.unread == 0.0


def test_spark_is_asked_for_its_newest_progress_as_long_as_a_source_tells() -> None:
    asked: list[int] = []

    def progress_of(*sources: dict[str, Any]) -> Progress:
        progress = Progress()
        text = json.dumps({"batchId": 7, "sources": sources})

        def newest() -> Any:
            asked.append(1)
            return SimpleNamespace(json=text)

        progress.follow(newest)
        return progress

    kafka = progress_of({"endOffset": {"a": {"0": 1}}, "latestOffset": {"a": {"0": 5}}})
    assert [kafka.lag, kafka.lag] == [{"a-0": 4}, {"a-0": 4}]
    assert len(asked) == 2
    again = progress_of({"endOffset": {"a": {"0": 1}}, "latestOffset": None})
    assert [again.lag, again.lag] == [{}, {}]
    assert len(asked) == 4
    asked.clear()
    files = progress_of({"endOffset": {"logOffset": 1}, "latestOffset": None})
    assert [files.lag, files.lag] == [{}, {}]
    assert len(asked) == 1


def test_where_a_source_began_is_also_found_in_a_manifest_on_a_store() -> None:
    kept = b'\0v1\n{"a":{"0":50}}'
    texts = {"sources/1/0": kept.decode(), "sources/2/0": "nothing of ours"}
    spark = {"texts": texts, "objects": {"sources/3/0": "f00"}}
    files = (FileEntry("sources/f00", len(kept), zlib.crc32(kept)),)
    latest = Manifest("job", 1, 1, 0, {}, {}, {}, {}, files=files, engine={"spark": spark})
    asked: list[Any] = []

    def read_file(*name: str, **of: int) -> bytes:
        asked.append((name, of))
        return kept

    store: Any = SimpleNamespace(read_file=read_file)
    start = '{"a":{"0":50}}'
    assert carried_starts(store, latest, 4) == [None, start, None, start]
    assert asked == [(("sources", "f00"), {"length": len(kept), "crc32": zlib.crc32(kept)})]
    assert carried_starts(store, None, 1) == [None]


def test_before_the_first_manifest_nothing_is_known_of_offsets() -> None:
    assert carried_offsets(None, 3) == [None]
