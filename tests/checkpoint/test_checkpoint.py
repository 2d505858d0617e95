from __future__ import annotations

import json
import os
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from small_driver import GROUPS, IDENTITY, OPERATOR, Driver

from headgate.checkpoint import checkpoint as checkpoints
from headgate.checkpoint import files
from headgate.checkpoint.checkpoint import Checkpoint
from headgate.checkpoint.manifest import (
    FileEntry,
    Heads,
    Manifest,
    sealed,
)
from headgate.checkpoint.place import Files
from headgate.checkpoint.verify import problems
from headgate.core.errors import CheckpointError, StateError
from headgate.tables.ports import EMPTY_TOKEN
from headgate_lab.testing.stores import fresh_token


@pytest.fixture
def driver(tmp_path: Path) -> Driver:
    return Driver(tmp_path / "checkpoint")


def kept(checkpoint: Checkpoint) -> int:
    return len(checkpoint._manifests) + len(checkpoint._blobs)


def test_a_driver_keeps_nothing_of_the_steps_it_has_committed(driver: Driver):
    counts = []
    for _ in range(40):
        driver.checkpoint.collect_garbage(driver.step())
        counts.append(kept(driver.checkpoint))
    assert max(counts) <= 2, counts


def test_what_chains_were_read_from_is_given_up_when_nobody_reads_any_more(driver: Driver):
    for _ in range(6):
        driver.step()
    reading = Checkpoint(driver.path)
    assert driver.last is not None
    heads = driver.last.heads[OPERATOR]
    chains = [reading.chain(OPERATOR, group, heads.steps[group]) for group in range(GROUPS)]
    first = [chain("nothing") for chain in chains]
    assert kept(reading)
    reading.settle(60.0)
    assert kept(reading)
    reading.settle(0.0)
    assert not kept(reading)
    again = [chain("nothing") for chain in chains]
    assert [[s.token for s in sections] for sections in again] == [
        [s.token for s in sections] for sections in first
    ]


def test_the_disk_too_is_given_back_when_nobody_reads_any_more(tmp_path: Path):
    driver = Driver(tmp_path)
    for _ in range(2):
        driver.step()
    reading = Checkpoint(tmp_path)
    reading.read(1)
    reading._spool.put(b"x" * 100_000)
    assert reading._spool._file is not None
    reading.settle(0.0)
    assert reading._spool._file is None


def test_what_was_committed_is_read_back(driver: Driver):
    driver.checkpoint.write_intent(0, {"quota": 1})
    first = driver.step()
    second = driver.step()
    fresh = Checkpoint(driver.path)
    assert fresh.open(IDENTITY) == driver.job
    found = fresh.latest()
    assert found == second
    assert found is not None
    assert found.digest == second.digest
    assert found.previous == first.digest
    assert fresh.read_intent(1) == {"step": 1}
    assert fresh.read_intent(7) is None
    assert problems(Checkpoint(driver.path)) == []


def test_an_empty_checkpoint_has_no_latest(driver: Driver):
    assert driver.checkpoint.latest() is None


@pytest.mark.parametrize("inline", [True, False])
def test_executors_rebuild_every_group_from_its_chain(tmp_path: Path, inline: bool):
    driver = Driver(tmp_path / "checkpoint", inline=inline)
    for _ in range(12):
        driver.step()
        assert driver.state() == driver.state(driver.store)


def test_a_manifest_of_another_checkpoint_is_refused_by_name_wherever_it_is_in_a_chain(
    tmp_path: Path,
):
    driver, other = Driver(tmp_path / "checkpoint", every=100), Driver(tmp_path / "b", every=100)
    for _ in range(4):
        driver.step()
        other.step()
    assert driver.last is not None
    heads, place = driver.last.heads[OPERATOR], tmp_path / "checkpoint/headgate/manifests"
    for number, file in enumerate(sorted(place.iterdir())):
        right = file.read_bytes()
        file.write_bytes((tmp_path / "b/headgate/manifests" / file.name).read_bytes())
        told = []
        for group in range(GROUPS):
            worker = Checkpoint(driver.path)  # which does not know the job
            try:
                worker.chain(OPERATOR, group, heads.steps[group], heads.tokens[group])(EMPTY_TOKEN)
            except CheckpointError as error:
                told.append(str(error))
        assert told, number
        assert all(f"{file} is damaged (it has another state of" in text for text in told)
        file.write_bytes(right)


def test_large_files_are_mapped_and_read_once_for_all_chains(tmp_path: Path, monkeypatch):
    driver = Driver(tmp_path, every=100, inline=False)
    for _ in range(8):
        driver.step()
    size = max(len(path.read_bytes()) for path in (driver.checkpoint.root / "changelog").iterdir())
    monkeypatch.setattr(files, "_MAPPED_BYTES", 1)
    # less than the files of a chain, so that what is not mapped would be read again for each group
    monkeypatch.setattr(checkpoints, "_CACHE_BYTES", 2 * size)
    read = []
    monkeypatch.setattr(files, "note_call", lambda act, directory, name: read.append(name))
    assert driver.last is not None
    reader = Checkpoint(tmp_path)
    heads = driver.last.heads[OPERATOR]
    for group in range(GROUPS):
        chain = reader.chain(OPERATOR, group, heads.steps[group])
        assert chain(EMPTY_TOKEN)[-1].token == heads.tokens[group]
    blobs = [name for name in read if name.endswith(".arrow")]
    assert sorted(blobs) == sorted(set(blobs))


class Far:
    """A checkpoint's files as those of a store, and who reads what."""

    shared = True

    def __init__(self, files: Files) -> None:
        self._files = files
        self.read: list[str] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._files, name)

    def get(self, name: str) -> bytes:
        self.read.append(name)
        return self._files.get(name)

    def get_large(self, name: str) -> bytes:
        return self.get(name)


def test_a_chain_on_a_store_is_read_many_files_at_a_time_and_each_once(tmp_path, monkeypatch):
    driver = Driver(tmp_path, every=100, inline=False)
    for _ in range(40):
        driver.step()
    reader = Checkpoint(tmp_path)
    far = reader.files = Far(reader.files)
    at_once = []
    monkeypatch.setattr(
        checkpoints, "ThreadPoolExecutor", lambda n: at_once.append(n) or ThreadPoolExecutor(n)
    )
    heads = driver.last.heads[OPERATOR]
    for group in range(GROUPS):
        chain = reader.chain(OPERATOR, group, heads.steps[group])
        assert chain(EMPTY_TOKEN)[-1].token == heads.tokens[group]
    assert sorted(far.read) == sorted(set(far.read))
    # manifests: one, then 2, 4, 8, and what is left of 40; then blobs
    assert at_once[:4] == [2, 4, 8, 16]
    assert 16 in at_once[4:]


def test_one_step_of_a_store_is_one_read(tmp_path):
    driver = Driver(tmp_path, every=100, inline=False)
    for _ in range(9):
        driver.step()
    reader = Checkpoint(tmp_path)
    far = reader.files = Far(reader.files)
    chain = reader.chain(OPERATOR, 1, driver.last.heads[OPERATOR].steps[1])
    before = driver.checkpoint.read(7).heads[OPERATOR].tokens[1]
    assert len(chain(before)) == 1
    assert [name.partition("/")[0] for name in far.read] == [
        "manifests",
        "manifests",
        "manifests",
        "changelog",
    ]


def test_what_lacks_before_a_step_that_is_read_is_nobodys_error(tmp_path):
    driver = Driver(tmp_path, every=4, inline=False)
    for _ in range(12):
        driver.step()
        driver.checkpoint.collect_garbage(driver.last)
    reader = Checkpoint(tmp_path)
    reader.files = Far(reader.files)
    heads = driver.last.heads[OPERATOR]
    for group in range(GROUPS):
        chain = reader.chain(OPERATOR, group, heads.steps[group])
        assert chain(EMPTY_TOKEN)[-1].token == heads.tokens[group]


def test_garbage_goes_and_nothing_a_restart_needs(tmp_path: Path):
    driver = Driver(tmp_path / "checkpoint", every=4, inline=False)
    root = driver.checkpoint.root
    for number in range(40):
        driver.step()
        driver.checkpoint.collect_garbage(driver.last)
        if number % 13 == 5:
            driver = Driver(tmp_path / "checkpoint", every=4, inline=False)
        assert driver.state() == driver.state(driver.store)
        assert len(list((root / "manifests").iterdir())) <= 10
        assert len(list((root / "intents").iterdir())) <= 3
        # A damaged newest manifest must leave the one before it usable.
        before = driver.last
        if number > 1:
            driver.last = driver.checkpoint.read(number - 1)
            driver.state()
        driver.last = before
    assert len(list((root / "output").iterdir())) <= 5
    assert problems(Checkpoint(driver.path)) == []


def test_unnamed_files_go_once_they_are_old(driver: Driver):
    driver.checkpoint.write_file("changelog", "orphan.arrow", b"x")
    for _ in range(70):
        driver.step()
        driver.checkpoint.collect_garbage(driver.last)
    assert not (driver.checkpoint.root / "changelog" / "orphan.arrow").exists()


def test_a_second_driver_is_told_so(driver: Driver):
    other = Driver(driver.path)
    driver.step()
    with pytest.raises(CheckpointError, match="stop one of the two drivers"):
        other.step()


def test_another_query_is_refused_with_both_values(driver: Driver):
    for change, text in (
        ({"keys": ["page", "country"]}, r"keys: was `page`, now `page`, `country`"),
        ({"groups": 64}, "groups: was 4, now 64"),
        ({"layout": {"width": 6}}, r"layout: was `{.width.: 5}`, now `{.width.: 6}`"),
    ):
        with pytest.raises(CheckpointError, match=text):
            Checkpoint(driver.path).open({**IDENTITY, **change})


@pytest.mark.parametrize("name", ["offsets", "metadata"])
def test_a_plain_spark_checkpoint_is_refused(tmp_path: Path, name: str):
    (tmp_path / name).mkdir()
    with pytest.raises(CheckpointError, match="plain Spark"):
        Checkpoint(tmp_path).open(IDENTITY)


def test_places_that_cannot_be_written_are_named(tmp_path: Path):
    (tmp_path / "file").touch()
    with pytest.raises(CheckpointError, match="cannot be used"):
        Checkpoint(tmp_path / "file" / "x").open(IDENTITY)
    with pytest.raises(CheckpointError, match="POSIX"):
        Checkpoint("dbfs:/bucket/x")
    with pytest.raises(CheckpointError, match="not a checkpoint"):
        Checkpoint(tmp_path).latest()
    assert Checkpoint(f"file://{tmp_path}").path == tmp_path


@pytest.mark.parametrize("name", ["../x", "/etc/passwd", "", ".x", "a b", "x" * 65, "a\0b", "a/b"])
def test_names_that_leave_the_directory_are_refused(driver: Driver, name: str):
    with pytest.raises(CheckpointError, match="cannot name a file"):
        driver.checkpoint.write_file("output", name, b"")
    with pytest.raises(CheckpointError, match="cannot name a file"):
        driver.checkpoint.read_file("output", name)


def test_a_file_is_never_written_twice(driver: Driver):
    driver.checkpoint.write_file("output", "one", b"1")
    with pytest.raises(CheckpointError, match="there already"):
        driver.checkpoint.write_file("output", "one", b"2")
    assert driver.checkpoint.read_file("output", "one") == b"1"
    with pytest.raises(CheckpointError, match="checksum"):
        driver.checkpoint.read_file("output", "one", crc32=5)


def every_file(root: Path) -> list[Path]:
    return sorted(path for path in root.rglob("*") if path.is_file())


def use(path: Path) -> object:
    """Do what a restart does; return everything it would build on."""
    driver = Driver(path)
    assert driver.last is not None
    for file in driver.last.files:
        kind, _, name = file.name.partition("/")
        driver.checkpoint.read_file(kind, name, length=file.length, crc32=file.crc32)
    return driver.last, driver.state(), driver.checkpoint.read_intent(driver.last.step)


@pytest.mark.parametrize("inline", [True, False])
@pytest.mark.parametrize("damage", ["flip", "truncate", "empty", "link", "missing", "directory"])
def test_damage_is_an_error_never_another_answer(tmp_path: Path, damage: str, inline: bool):
    path = tmp_path / "checkpoint"
    driver = Driver(path, every=3, inline=inline)
    for _ in range(4):
        driver.step()
    good = use(path)
    errors = []
    for file in every_file(path):
        raw = file.read_bytes()
        for at in range(0, len(raw), max(1, len(raw) // 7)):
            _damage(file, raw, damage, at)
            try:
                assert use(path) == good or damage == "missing"
            except (CheckpointError, StateError) as error:
                errors.append(str(error))
            finally:
                _repair(file, raw)
    assert len(errors) > 4
    assert all(error and "\n" not in error for error in errors)
    assert use(path) == good


def _damage(file: Path, raw: bytes, damage: str, at: int) -> None:
    file.unlink()
    if damage == "flip":
        file.write_bytes(raw[:at] + bytes([raw[at] ^ 0x41]) + raw[at + 1 :])
    elif damage == "truncate":
        file.write_bytes(raw[:at])
    elif damage == "empty":
        file.touch()
    elif damage == "link":
        target = file.parent.parent.parent.parent / "elsewhere"
        target.write_bytes(raw)
        file.symlink_to(target)
    elif damage == "directory":
        file.mkdir()


def _repair(file: Path, raw: bytes) -> None:
    if file.is_dir() and not file.is_symlink():
        file.rmdir()
    elif os.path.lexists(file):
        file.unlink()
    file.write_bytes(raw)


def test_verify_names_each_damaged_file(driver: Driver):
    for _ in range(3):
        driver.step()
    file = driver.checkpoint.root / "manifests" / f"{1:012d}"
    file.write_bytes(file.read_bytes().replace(b'"epoch":1', b'"epoch":2'))
    (output,) = (driver.checkpoint.root / driver.last.files[0].name,)
    output.write_bytes(b"other")
    found = problems(Checkpoint(driver.path))
    assert any(str(file) in one for one in found)
    assert any(str(output) in one for one in found)


@pytest.mark.parametrize("text", [b"[]", b"5", b"null", b'"x"'])
def test_a_note_that_is_no_object_is_damage(driver: Driver, text: bytes):
    driver.checkpoint.write_note({"a": 1})
    assert driver.checkpoint.read_note() == {"a": 1}
    driver.checkpoint.files.put("sparklog.json", sealed(text + b"\n")[0])
    with pytest.raises(CheckpointError, match=r"sparklog.json is damaged \(it is no JSON object\)"):
        driver.checkpoint.read_note()


def test_verify_names_a_chain_that_leads_elsewhere(driver: Driver):
    for _ in range(3):
        driver.step()
    assert driver.last is not None
    assert problems(Checkpoint(driver.path)) == []
    heads = driver.last.heads[OPERATOR]
    wrong = Heads((fresh_token(), *heads.tokens[1:]), (-1, *heads.steps[1:]))
    last = driver.last
    driver.checkpoint.commit(
        replace(last, step=3, heads={OPERATOR: wrong}, sections={}, blobs=(), files=(), payloads={},
                previous=last.digest)
    )  # fmt: skip
    found = problems(Checkpoint(driver.path))
    assert found == [f"{OPERATOR}, key group 0: its chain does not lead to {wrong.tokens[0]}"]


def test_verify_names_a_chain_that_cannot_be_read_and_looks_at_the_others(driver: Driver):
    for _ in range(3):
        driver.step()
    last = driver.last
    assert last is not None
    heads = last.heads[OPERATOR]
    steps = (7, heads.steps[1], 8, *heads.steps[3:])
    driver.checkpoint.commit(
        replace(last, step=3, heads={OPERATOR: Heads(heads.tokens, steps)}, sections={}, blobs=(),
                files=(), payloads={}, previous=last.digest)
    )  # fmt: skip
    found = problems(Checkpoint(driver.path))
    named = [f"{OPERATOR}, key group {group}: " for group in (0, 2)]
    assert [text[: len(name)] for text, name in zip(found, named, strict=True)] == named


@pytest.mark.parametrize("link", [False, True])
@pytest.mark.parametrize("kind", ["intents", "backlog", "late"])
def test_a_directory_that_is_gone_or_a_link_stops_neither_verification_nor_collection(
    driver: Driver, tmp_path: Path, kind: str, link: bool
):
    for _ in range(3):
        driver.step()
    place, others = driver.path / "headgate" / kind, tmp_path / "others"
    others.mkdir()
    (others / "000000000000").write_text("theirs")
    place.rename(tmp_path / "away")
    if link:
        place.symlink_to(others)
    said = [text for text in problems(Checkpoint(driver.path)) if str(place) in text]
    assert len(said) == (link and kind == "intents"), said
    assert driver.last is not None
    for _ in range(64):
        driver.checkpoint.collect_garbage(driver.last)
    assert (others / "000000000000").read_text() == "theirs"


def test_a_manifest_cannot_lead_garbage_collection_astray(driver: Driver):
    manifest = Manifest(driver.job, 0, 0, 0, {}, {}, {}, {}, files=(FileEntry("../x", 1, 1),))
    with pytest.raises(CheckpointError, match="cannot name it"):
        driver.checkpoint.commit(manifest)


def test_the_head_is_one_line_of_json(driver: Driver):
    driver.step()
    raw = (driver.checkpoint.root / "manifests" / f"{0:012d}").read_bytes()
    head = json.loads(raw.split(b"\n")[0])
    assert head["step"] == 0
    assert raw.split(b"\n")[-2].startswith(b"sha256 ")


def test_files_are_private(driver: Driver):
    driver.step()
    for path in driver.checkpoint.root.rglob("*"):
        assert path.stat().st_mode & 0o077 == 0, path


def test_what_is_kept_of_manifests_that_were_read_has_a_bound(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    driver = Driver(tmp_path)
    steps = [driver.step().step for _ in range(12)]
    size = min(driver.checkpoint.files.sizes("manifests").values())
    monkeypatch.setattr(checkpoints, "_CACHE_BYTES", 4 * checkpoints._OBJECTS_PER_BYTE * size)
    reader = Checkpoint(tmp_path)
    for step in steps:
        reader.read(step)
    assert 2 <= len(reader._manifests) <= 5
    assert reader.read(steps[-1]) is reader.read(steps[-1])
