"""Files at the top of a checkpoint, and chains, that lack what they must have."""

from __future__ import annotations

from pathlib import Path

import pytest

from headgate.checkpoint.checkpoint import Checkpoint
from headgate.checkpoint.identity import MEANING
from headgate.checkpoint.manifest import json_line, sealed
from headgate.core.errors import AnotherDriver, CheckpointError

IDENTITY = {"groups": 1}


@pytest.mark.parametrize(
    ("name", "content", "says"),
    [
        ("identity.json", {}, "it lacks format"),
        ("identity.json", {"format": 2}, "it lacks job or query"),
        ("identity.json", {"format": 2, "job": "j"}, "it lacks job or query"),
        ("identity.json", {"format": 1, "query": {}}, "it lacks job or query"),
        (
            "identity.json",
            {"format": 3},
            "has format 3, this headgate reads up to format 2: upgrade headgate",
        ),
        ("meaning.json", {}, f"it lacks {MEANING}"),
        ("identity.json", [], "identity.json"),
    ],
)
def test_a_file_that_lacks_something_is_named(
    tmp_path: Path, name: str, content: object, says: str
) -> None:
    checkpoint = Checkpoint(tmp_path)
    checkpoint.open(IDENTITY)
    (checkpoint.root / name).write_bytes(sealed(json_line(content))[0])
    with pytest.raises(CheckpointError, match=says):
        Checkpoint(tmp_path).open(IDENTITY)


def test_a_checkpoint_on_a_store_has_a_path_where_sparks_log_is_known_alone(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"s3://b/ck is no directory; it lies on a store\."):
        assert Checkpoint("s3://b/ck").path
    assert Checkpoint("s3://b/ck", log=tmp_path).root == tmp_path / "headgate"


def test_of_two_drivers_that_begin_one_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = Checkpoint(tmp_path), Checkpoint(tmp_path)
    job = first.open(IDENTITY)
    with monkeypatch.context() as patch:
        # both have looked before either wrote
        patch.setattr(second.files, "exists", lambda name: False)
        with pytest.raises(CheckpointError, match="has its identity from another driver already"):
            second.open(IDENTITY)
    assert Checkpoint(tmp_path).open(IDENTITY) == job


def test_who_goes_on_behind_another_learns_it(tmp_path: Path) -> None:
    checkpoint = Checkpoint(tmp_path)
    checkpoint.open(IDENTITY)
    checkpoint.refuse_after_another(4)
    (checkpoint.root / "manifests" / "000000000005").write_bytes(b"not even a manifest")
    with pytest.raises(AnotherDriver, match="has step 5 from another driver already: stop one of"):
        checkpoint.refuse_after_another(4)
    checkpoint.refuse_after_another(5)
    assert checkpoint.steps() == [5]
    (checkpoint.root / "manifests" / "5").touch()
    (checkpoint.root / "manifests" / "00000000000x").touch()
    assert checkpoint.steps() == [5], "names of other lengths are none of ours"
