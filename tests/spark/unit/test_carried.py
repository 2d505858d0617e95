"""Spark's log of a checkpoint on a store: what of it is taken along, and comes back."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from headgate.checkpoint.checkpoint import Checkpoint
from headgate.checkpoint.manifest import Manifest
from headgate.checkpoint.manifest_log import committed_by_spark, offsets_text
from headgate.core.errors import CheckpointError
from headgate.spark.step.carried import CarriedLog
from headgate_lab.testing import s3_server
from headgate_lab.testing.s3_server import BUCKET, FaultyS3, S3Fault

pytest.importorskip("obstore", reason="needs headgate[store]")


@pytest.fixture
def store() -> Iterator[FaultyS3]:
    with s3_server.serving() as made:
        yield made


def checkpoint(store: FaultyS3, log: Path) -> Checkpoint:
    log.mkdir(exist_ok=True)
    return Checkpoint(f"s3://{BUCKET}/ck", store.options, log)


def write(log: Path, **files: str | bytes) -> None:
    for name, content in files.items():
        file = log / name.replace("__", "/").replace("_", ".")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(content.encode() if isinstance(content, str) else content)


def read(log: Path) -> dict[str, bytes]:
    return {str(p.relative_to(log)): p.read_bytes() for p in log.rglob("*") if p.is_file()}


def committed(of: Checkpoint, batch: int) -> Manifest:
    job = of.open({"keys": 1})
    carried = CarriedLog(of)
    carried.read_log(batch)
    made = Manifest(job, 0, batch, 0, {}, {"evict_us": 0}, {}, {})
    return of.commit(carried.into(made))


def test_what_a_restart_reads_comes_back_and_nothing_else(store: FaultyS3, tmp_path: Path) -> None:
    log = tmp_path / "here"
    write(log, metadata="id", offsets__6="o6", offsets__7="o7", offsets__8="o8", commits__6="c6")
    write(log, commits__7="c7", _offsets_9_tmp="torn", offsets__5="o5", commits__5="c5")
    names = {f"sources__0__{n}": f"s{n}" for n in range(8)} | {"sources__0__9_compact": "x" * 5000}
    write(log, **names, sources__0__10="s10", sources__1__0=b"\xff\x00", sources__1___hidden="no")
    here = checkpoint(store, log)
    latest = committed(here, 8)
    there = checkpoint(store, tmp_path / "there")
    CarriedLog(there).restore(there.latest() or latest)
    assert Checkpoint(tmp_path / "there").latest() == latest, "for sinks, which look there"
    shutil.rmtree(tmp_path / "there" / "headgate")
    assert read(tmp_path / "there") == {
        "metadata": b"id",
        "offsets/7": b"o7",
        "offsets/8": b"o8",
        "commits/7": b"c7",
        "sources/0/9.compact": b"x" * 5000,
        "sources/0/10": b"s10",
        "sources/1/0": b"\xff\x00",
    }
    assert len([key for key in store.objects if "/sources/" in key]) == 2, (
        "what is large, or no text"
    )
    assert offsets_text(latest, 8) == "o8"
    assert offsets_text(latest, 5) is None


def test_a_file_that_went_to_the_store_stays_with_the_manifests_that_follow(
    store: FaultyS3, tmp_path: Path
) -> None:
    log = tmp_path / "here"
    write(log, metadata="id", offsets__0="o0", sources__0__0="x" * 5000)
    here = checkpoint(store, log)
    carried, job = CarriedLog(here), here.open({"keys": 1})
    latest = None
    for batch in range(3):
        write(log, **{f"offsets__{batch}": f"o{batch}", f"commits__{batch}": f"c{batch}"})
        carried.read_log(batch)
        before = latest.digest if latest else None
        made = Manifest(job, batch, batch, 0, {}, {"evict_us": 0}, {}, {}, previous=before)
        latest = here.commit(carried.into(made))
    assert len([key for key in store.objects if "/sources/" in key]) == 1
    assert latest is not None
    CarriedLog(checkpoint(store, tmp_path / "there")).restore(latest)
    assert (tmp_path / "there" / "sources" / "0" / "0").read_bytes() == b"x" * 5000


def test_that_spark_has_committed_is_noted_of_this_very_manifest(
    store: FaultyS3, tmp_path: Path
) -> None:
    log = tmp_path / "here"
    write(log, metadata="id", offsets__0="o0")
    here = checkpoint(store, log)
    latest = committed(here, 0)
    CarriedLog(here).note_commit(latest)
    assert not committed_by_spark(here, latest), "Spark has not"
    write(log, commits__0="c0")
    CarriedLog(here).note_commit(latest)
    assert committed_by_spark(here, latest)
    CarriedLog(checkpoint(store, tmp_path / "there")).restore(latest)
    assert (tmp_path / "there" / "commits" / "0").read_bytes() == b"c0"
    other = replace(latest, digest="0" * 64)
    CarriedLog(checkpoint(store, tmp_path / "elsewhere")).restore(other)
    assert not (tmp_path / "elsewhere" / "commits").exists()


def test_that_a_step_is_out_is_noted_with_one_request_while_the_source_is_quiet(
    store: FaultyS3, tmp_path: Path
) -> None:
    log = tmp_path / "here"
    write(log, metadata="id", offsets__0="o0")
    here = checkpoint(store, log)
    latest = committed(here, 0)
    CarriedLog(here).note_delivered(latest)
    assert not committed_by_spark(here, latest), "Spark has not committed it"
    write(log, commits__0="c0")
    store.requests.clear()
    store.faults.append(S3Fault(s3_server.FORBIDDEN))
    CarriedLog(here).note_delivered(latest)
    assert not committed_by_spark(here, latest), "a store that refuses is no batch's concern"
    store.requests.clear()
    CarriedLog(here).note_delivered(latest)
    assert len(store.requests) == 1
    assert committed_by_spark(here, latest)
    store.requests.clear()
    CarriedLog(here).note_commit(latest)
    assert not [key for method, key in store.requests if method == "PUT"], "noted already"


@pytest.mark.parametrize("path", ["../x", "/etc/x", "sources/../../x", ".bashrc", "a b", ""])
def test_a_manifest_cannot_lead_out_of_the_logs_directory(
    store: FaultyS3, tmp_path: Path, path: str
) -> None:
    here = checkpoint(store, tmp_path / "log")
    latest = committed(here, 0)
    bad = replace(latest, engine={"spark": {"texts": {path: "x"}, "objects": {}}})
    with pytest.raises(CheckpointError, match="is damaged"):
        CarriedLog(here).restore(bad)
    assert read(tmp_path) == {}


def test_a_checkpoint_that_was_written_elsewhere_is_refused(
    store: FaultyS3, tmp_path: Path
) -> None:
    here = checkpoint(store, tmp_path / "log")
    latest = here.commit(Manifest(here.open({}), 0, 0, 0, {}, {"evict_us": 0}, {}, {}))
    with pytest.raises(CheckpointError, match="has no log of Spark's"):
        CarriedLog(here).restore(latest)
