"""Spark's own log: each file that a restart reads is compared with a note of it."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from headgate.checkpoint.checkpoint import Checkpoint
from headgate.checkpoint.manifest import Manifest
from headgate.checkpoint.spark_log import (
    FIELD,
    LogNotes,
    check_log,
    needed_files,
    newest_batch,
    newest_note,
    problems_in_log,
)
from headgate.core.errors import CheckpointError
from headgate.scenario.inspection import inspect


def begin(log: Path, batch: int, watermark_ms: int, source: str, tick: int) -> None:
    notes = json.dumps({"batchWatermarkMs": watermark_ms, "batchTimestampMs": 7, "conf": {}})
    put(log / f"offsets/{batch}", f"v1\n{notes}\n{source}\n{tick}")


def end(log: Path, batch: int, watermark_ms: int) -> None:
    put(log / f"commits/{batch}", f'v1\n{{"nextBatchWatermarkMs":{watermark_ms}}}')


def put(file: Path, text: str) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)


def committed(place: Path, batch: int, source: str, evict_ms: int, *, noted: bool) -> Manifest:
    """Commit the step of a batch as the machine does, with a note or without one."""
    checkpoint = Checkpoint(place)
    job = checkpoint.open({})
    before = checkpoint.latest()
    engine: dict[str, Any] = {"sources": [source]}
    if noted:
        engine[FIELD] = LogNotes(place).note(batch)
    step = 0 if before is None else before.step + 1
    marks = {"late_us": 0, "evict_us": evict_ms * 1000}
    previous = before.digest if before else None
    made = Manifest(job, step, batch, 0, {}, marks, {}, {}, engine=engine, previous=previous)
    return checkpoint.commit(made)


@pytest.fixture(params=[True, False], ids=["noted", "older"])
def noted(request: pytest.FixtureRequest) -> bool:
    """Whether the checkpoint has notes, or is of an older headgate."""
    return bool(request.param)


@pytest.fixture
def place(tmp_path: Path, noted: bool) -> Path:
    """A checkpoint after batch 4, of which Spark has noted the commit."""
    Checkpoint(tmp_path).open({})
    put(tmp_path / "metadata", '{"id":"6"}')
    put(tmp_path / "sources/0/2.compact", "v1\nall")
    put(tmp_path / "sources/0/3", "v1\nnew")
    put(tmp_path / "sources/0/1", "v1\nold")
    put(tmp_path / "sources/0/.3.crc", "crc")
    begin(tmp_path, 3, 5000, "a3", 3)
    end(tmp_path, 3, 6000)
    committed(tmp_path, 3, "a3", 5000, noted=noted)
    begin(tmp_path, 4, 6000, "a4", 4)
    committed(tmp_path, 4, "a4", 6000, noted=noted)
    end(tmp_path, 4, 7000)
    if noted:
        Checkpoint(tmp_path).write_note({**LogNotes(tmp_path).note(4), "step": 1})
    return tmp_path


def check(place: Path) -> None:
    checkpoint = Checkpoint(place)
    check_log(checkpoint, checkpoint.latest())


def changed(file: Path, old: str, new: str) -> None:
    before = file.read_text()
    assert old in before
    file.write_text(before.replace(old, new, 1))


def test_a_log_as_spark_wrote_it_is_sound(place: Path) -> None:
    check(place)
    assert inspect(place, verify=True)["problems"] == []


DAMAGES: dict[str, tuple[str, Callable[[Path], object]]] = {
    "a later watermark": ("offsets/4", lambda f: changed(f, "6000", "8000")),
    "another offset": ("offsets/4", lambda f: changed(f, "a4", "a5")),
    "cut": ("offsets/4", lambda f: f.write_text(f.read_text()[:20])),
    "no text": ("offsets/4", lambda f: f.write_bytes(b"\xff\xfe")),
    "gone": ("offsets/4", Path.unlink),
    "the one before gone": ("offsets/3", Path.unlink),
    "a commit that is cut": ("commits/4", lambda f: f.write_text("v1\n{")),
    "a commit of text": ("commits/4", lambda f: changed(f, "7000", '"x"')),
    "no id": ("metadata", Path.unlink),
    "a cut id": ("metadata", lambda f: f.write_text('{"id')),
    "a nested id": ("metadata", lambda f: f.write_text("[" * 100_000)),
}


@pytest.mark.parametrize("what", DAMAGES)
def test_what_is_damaged_is_named_with_what_to_do(place: Path, what: str) -> None:
    path, act = DAMAGES[what]
    act(place / path)
    with pytest.raises(CheckpointError) as refused:
        check(place)
    text = str(refused.value)
    assert path in text
    assert "restore the checkpoint from a copy" in text
    assert "\n" not in text
    assert text in inspect(place, verify=True)["problems"]


NOTED: dict[str, tuple[str, Callable[[Path], object]]] = {
    "an earlier watermark": ("offsets/4", lambda f: changed(f, "6000", "1000")),
    "the next watermark": ("commits/4", lambda f: changed(f, "7000", "9000")),
    "another tick": ("offsets/4", lambda f: changed(f, "\n4", "\n5")),
    "another id": ("metadata", lambda f: changed(f, "6", "7")),
    "what a source has seen": ("sources/0/3", lambda f: changed(f, "new", "old")),
    "what a source has seen is gone": ("sources/0/2.compact", Path.unlink),
    "Hadoop's checksum of it": ("sources/0/.3.crc", lambda f: f.write_text("")),
    "the older one": ("offsets/4", lambda f: shutil.copy(f.with_name("3"), f)),
}


@pytest.mark.parametrize("noted", [True], indirect=True)
@pytest.mark.parametrize("what", NOTED)
def test_a_note_knows_each_file(place: Path, what: str) -> None:
    path, act = NOTED[what]
    act(place / path)
    with pytest.raises(CheckpointError, match=path):
        check(place)
    found = inspect(place, verify=True)
    assert not found["sound"]
    assert len(found["problems"]) == 1, "it is said once"


@pytest.mark.parametrize("noted", [True], indirect=True)
def test_a_manifest_that_is_gone_is_missed(place: Path) -> None:
    (place / "headgate/manifests/000000000001").unlink()
    with pytest.raises(CheckpointError, match="manifests/000000000001 is missing"):
        check(place)


@pytest.mark.parametrize("noted", [True], indirect=True)
def test_spark_put_back_alone_is_refused(place: Path) -> None:
    (place / "offsets/4").unlink()
    (place / "commits/4").unlink()
    with pytest.raises(CheckpointError, match="offsets/4 is missing"):
        check(place)


def test_headgates_part_put_back_alone_is_refused(place: Path, noted: bool) -> None:
    (place / "headgate/manifests/000000000001").unlink()
    if noted:
        Checkpoint(place).write_note({**LogNotes(place).note(3), "step": 0})
    with pytest.raises(
        CheckpointError, match="offsets/4 has data that no manifest of headgate covers"
    ):
        check(place)
    assert any("offsets/4" in text for text in inspect(place, verify=True)["problems"])


def test_a_batch_without_new_data_needs_no_manifest(place: Path) -> None:
    begin(place, 5, 7000, "a4", 5)
    end(place, 5, 7000)
    check(place)


def test_the_identity_of_another_checkpoint_is_found(place: Path, tmp_path_factory: Any) -> None:
    other = tmp_path_factory.mktemp("other")
    Checkpoint(other).open({})
    shutil.copy(other / "headgate/identity.json", place / "headgate/identity.json")
    (problem,) = inspect(place, verify=True)["problems"]
    assert "identity.json is of another checkpoint than the manifests" in problem


def test_a_commit_that_spark_has_not_written_is_no_damage(place: Path, noted: bool) -> None:
    (place / "commits/4").unlink()
    check(place)
    problems = inspect(place, verify=True)["problems"]
    assert any("commits/4 is missing" in text for text in problems) is noted


def test_a_checksum_of_hadoops_that_is_gone_is_no_damage(place: Path) -> None:
    (place / "sources/0/.3.crc").unlink()
    assert inspect(place, verify=True)["sound"]
    check(place)


def test_a_batch_that_was_planned_and_not_done_is_no_damage(place: Path) -> None:
    begin(place, 5, 7000, "a5", 5)
    put(place / "sources/0/4", "v1\nnewer")
    check(place)
    put(place / "offsets/.6.tmp", "")
    check(place)


def test_a_planned_batch_begins_where_the_one_before_has_ended(place: Path) -> None:
    begin(place, 5, 7500, "a5", 5)
    with pytest.raises(CheckpointError, match="watermark 7500 where batch 4 ended at 7000"):
        check(place)


@pytest.mark.parametrize("noted", [True], indirect=True)
def test_the_intent_of_a_step_that_was_begun_knows_its_batch(place: Path) -> None:
    begin(place, 5, 7000, "a5", 5)
    log = LogNotes(place).note(5)
    Checkpoint(place).write_intent(2, {"step": 2, FIELD: log})
    check(place)
    changed(place / "offsets/5", "a5", "a6")
    with pytest.raises(CheckpointError, match="offsets/5"):
        check(place)


@pytest.mark.parametrize("noted", [True], indirect=True)
def test_batches_that_spark_has_removed_are_not_missed(place: Path) -> None:
    for batch in (5, 6):
        begin(place, batch, 7000, "a4", batch)
        end(place, batch, 7000)
    for batch in (3, 4):
        (place / f"offsets/{batch}").unlink()
        (place / f"commits/{batch}").unlink()
    check(place)


@pytest.mark.parametrize("noted", [True], indirect=True)
@pytest.mark.parametrize("name", ["sparklog.json", "intents/000000000002"])
def test_what_is_written_beside_the_manifests_may_be_lost_and_is_told(
    place: Path, name: str
) -> None:
    """It is not forced to disk, so a machine that stops may leave it empty."""
    Checkpoint(place).write_intent(2, {"step": 2, FIELD: LogNotes(place).note(4)})
    file = place / "headgate" / name
    raw = file.read_bytes()
    file.write_bytes(b"")
    check(place)
    (problem,) = inspect(place, verify=True)["problems"]
    assert name in problem
    file.write_bytes(raw.replace(b'"step":2', b'"step":3'))
    if name.startswith("intents"):
        assert not inspect(place)["sound"]


@pytest.mark.parametrize("noted", [True], indirect=True)
def test_an_intent_of_another_step_is_damaged(place: Path) -> None:
    checkpoint = Checkpoint(place)
    checkpoint.write_intent(1, {"step": 1})
    shutil.copy(place / "headgate/intents/000000000001", place / "headgate/intents/000000000002")
    with pytest.raises(CheckpointError, match="it is of step 1"):
        checkpoint.read_intent(2)
    assert checkpoint.read_intent(1) == {"step": 1}


LINKS = ["metadata", "offsets", "offsets/4", "commits/4", "sources", "sources/0", "sources/0/3"]


@pytest.mark.parametrize("path", LINKS)
@pytest.mark.parametrize("kind", ["link", "pipe"])
def test_what_is_no_file_is_neither_followed_nor_waited_for(
    place: Path, path: str, kind: str
) -> None:
    away = place.parent / f"{place.name}-away"
    shutil.move(place / path, away)
    if kind == "link":
        (place / path).symlink_to(away)
    else:
        os.mkfifo(place / path)
    with pytest.raises(
        CheckpointError, match=r"symbolic|regular file|directory|missing"
    ) as refused:
        check(place)
    assert path in str(refused.value)


@pytest.mark.parametrize(
    "files",
    [
        {"../away": [1, 1]},
        {"/etc/hostname": [1, 1]},
        {"sources/../../away": [1, 1]},
        {"headgate/identity.json": [1, 1]},
        {"offsets/x": [1, 1]},
        {"metadata": 5},
        {"metadata": ["1", None]},
    ],
)
def test_a_note_names_no_file_but_those_of_the_log(place: Path, files: dict[str, Any]) -> None:
    (place.parent / "away").write_text("x")
    for beside in ({}, {"commits/4": [1, 1]}):  # nor does one that is right make up for it
        Checkpoint(place).write_note({"batch": 9, "files": {**beside, **files}})
        check(place)
        found = newest_note(Checkpoint(place), None)
        assert found is None or found["batch"] != 9


def test_the_directory_itself_may_be_a_link(place: Path) -> None:
    link = place.parent / f"{place.name}-link"
    link.symlink_to(place)
    check(link)
    assert newest_note(Checkpoint(link), None) == newest_note(Checkpoint(place), None)
    assert LogNotes(link).note(4) == LogNotes(place).note(4)


def test_a_note_has_what_a_restart_reads_and_nothing_else(place: Path) -> None:
    taken = LogNotes(place).note(4)
    assert sorted(taken["files"]) == [
        "commits/3", "commits/4", "metadata", "offsets/3", "offsets/4",
        "sources/0/.3.crc", "sources/0/2.compact", "sources/0/3",
    ]  # fmt: skip
    assert taken["batch"] == 4


def test_of_several_compacted_files_a_restart_reads_the_newest(place: Path) -> None:
    for name in ("0/10.compact", "0/11", "0/9", "0/4", "1/0", "1/1"):
        put(place / f"sources/{name}", "v1\nall")
    read = [name for name in needed_files(place, 4) if name.startswith("sources/")]
    assert sorted(read) == [
        "sources/0/10.compact", "sources/0/11", "sources/1/0", "sources/1/1",
    ]  # fmt: skip


def trouble(log: Path) -> list[tuple[str, Callable[[], object]]]:
    """Return what may happen to each file of Spark's log, and files that may come to it."""
    found: list[tuple[str, Callable[[], object]]] = []
    kinds = [log / kind for kind in ("commits", "offsets", "sources")]
    files = sorted(path for kind in kinds for path in kind.rglob("*") if path.is_file())
    for file in [*files, log / "metadata"]:
        name, text = str(file.relative_to(log)), file.read_text()
        texts = {
            "empty": "", "cut": text[: len(text) // 2], "another digit": text.replace("0", "1", 1),
            "of a newer Spark": text.replace("v1", "v12", 1), "no version": "v1234" + text[2:],
            "a list": "v1\n[]\n", "without offsets": "\n".join(text.split("\n")[:2]),
            "no number": text.replace("000", '"x"', 1), "more": f"{text}\nmore",
        }  # fmt: skip
        found += [
            (f"{name}: {what}", lambda f=file, t=t: f.write_text(t)) for what, t in texts.items()
        ]
        found.append((f"{name}: gone", file.unlink))
        found.append((f"{name}: a directory", lambda f=file: (f.unlink(), f.mkdir())))
        found.append(
            (f"{name}: a link", lambda f=file: (f.rename(f"{f}.x"), f.symlink_to(f"{f}.x")))
        )
    for batch, watermark_ms, source in (
        (5, 7000, "a5"),
        (5, 7100, "a5"),
        (5, 7000, "-"),
        (6, 7000, "a6"),
    ):
        what = f"batch {batch} at {watermark_ms}, {source}"
        both = (
            lambda b=batch, w=watermark_ms, s=source: (
                begin(log, b, w, s, b),
                end(log, b, w + 500),
            ),
            lambda b=batch, w=watermark_ms, s=source: begin(log, b, w, s, b),
            lambda b=batch, w=watermark_ms: end(log, b, w),
        )
        found += [
            (f"{what}, {n}", do) for n, do in zip(("ended", "begun", "no begin"), both, strict=True)
        ]
    found.append(
        ("offsets are a file", lambda: (shutil.rmtree(log / "offsets"), put(log / "offsets", "")))
    )
    found.append(("no sources", lambda: shutil.rmtree(log / "sources")))
    found.append(
        ("strange names", lambda: (put(log / "offsets/x", ""), put(log / "commits/.5.crc", "")))
    )
    return found


def test_what_becomes_of_sparks_log_is_told_as_recorded(
    place: Path, tmp_path: Path, noted: bool, recorded: Callable[[str, list[str]], None]
) -> None:
    lines, tried = [], tmp_path.with_name(f"{tmp_path.name}-tried")
    for number in range(len(trouble(place))):
        shutil.rmtree(tried, ignore_errors=True)
        shutil.copytree(place, tried, symlinks=True)
        what, do = trouble(tried)[number]
        do()
        lines.append(what)
        checkpoint = Checkpoint(tried)
        latest = checkpoint.latest()
        told = list(problems_in_log(checkpoint, latest))
        only = list(problems_in_log(checkpoint, latest, commits=False))
        lines += [f"    {text}" for text in told]
        lines += [] if only == told else [f"    at a start: {text}" for text in only or ["nothing"]]
        alone = list(problems_in_log(checkpoint, None))
        lines += (
            [] if alone == told else [f"    without manifests: {text}" for text in alone or ["-"]]
        )
        note = newest_note(checkpoint, latest)
        lines.append(
            f"    note {note and (note['batch'], sorted(note['files']))}, {newest_batch(tried)}"
        )
    text = "\n".join(lines).replace(str(tried.resolve()), "CK")
    recorded(f"spark-log-{'noted' if noted else 'older'}", text.split("\n"))
