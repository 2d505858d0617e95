"""Late records that a job keeps are no garbage as long as a manifest names them."""

from __future__ import annotations

from pathlib import Path

from headgate.checkpoint.checkpoint import Checkpoint
from headgate.checkpoint.manifest import Manifest


def test_late_files_outlive_every_sweep_as_long_as_they_are_named(tmp_path: Path) -> None:
    checkpoint = Checkpoint(tmp_path / "checkpoint")
    job = checkpoint.open({"key_groups": 1})
    checkpoint.write_file("late", "kept", b"late")
    checkpoint.write_file("late", "given-up", b"too long ago")
    checkpoint.write_file("output", "left", b"garbage")
    previous = None
    for step in range(200):
        manifest = Manifest(
            job=job,
            step=step,
            spark_batch=step,
            epoch=0,
            assignments={},
            watermarks={},
            heads={},
            sections={},
            engine={"late": [["aggregate-0", "kept"]]},
            previous=previous,
        )
        committed = checkpoint.commit(manifest)
        previous = committed.digest
        checkpoint.collect_garbage(committed)
    assert checkpoint.read_file("late", "kept") == b"late"
    assert [path.name for path in (checkpoint.root / "late").iterdir()] == ["kept"]
    assert not list((checkpoint.root / "output").iterdir())


def test_a_checkpoint_from_before_late_files_gets_their_directory(tmp_path: Path) -> None:
    checkpoint = Checkpoint(tmp_path / "checkpoint")
    checkpoint.open({"key_groups": 1})
    (checkpoint.root / "late").rmdir()
    again = Checkpoint(tmp_path / "checkpoint")
    again.open({"key_groups": 1})
    again.write_file("late", "one", b"")
