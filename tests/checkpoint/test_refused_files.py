"""Tests what is asked of a store before it holds a checkpoint, and what is left of a failed write."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from headgate.checkpoint import files, identity
from headgate.checkpoint.objects import ObjectFiles
from headgate.checkpoint.own_store import OwnStoreFiles
from headgate.core.errors import CheckpointError


def test_a_directory_that_may_not_be_written_is_refused(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    asked: list[Any] = []
    monkeypatch.setattr(os, "access", lambda *told: asked.append(told))
    path = tmp_path / "d"
    with pytest.raises(CheckpointError) as refused:
        files.make_directory(path)
    assert str(refused.value) == (
        f"checkpoint directory {path} cannot be used (Permission denied): make it a directory you may "
        "write to"
    )
    assert asked == [(path, os.W_OK | os.X_OK)]
    assert path.stat().st_mode & 0o777 == 0o700
    monkeypatch.setattr(os, "access", lambda *told: True)
    files.make_directory(path)


@pytest.mark.parametrize("durable", [True, False])
def test_a_file_is_written_whole_or_not_at_all(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, durable: bool
) -> None:
    parent = os.open(tmp_path, os.O_RDONLY)
    write, synced = os.write, list[int]()
    monkeypatch.setattr(os, "write", lambda to, view: write(to, view[:2]))
    monkeypatch.setattr(os, "fsync", synced.append)
    try:
        files._write_new(parent, "f", b"12345", durable=durable)
        assert (tmp_path / "f").read_bytes() == b"12345"
        assert len(synced) == durable

        def full(to: int, view: Any) -> int:
            raise OSError(28, "No space left")

        monkeypatch.setattr(os, "write", full)
        with pytest.raises(OSError, match="No space left"):
            files._write_new(parent, "g", b"12345", durable=durable)
        assert sorted(os.listdir(tmp_path)) == ["f"]
    finally:
        os.close(parent)


# --- Stores -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [ObjectFiles, OwnStoreFiles])
def test_a_store_is_tried_listed_and_tidied_before_it_is_refused(kind: Any) -> None:
    did: list[Any] = []
    store: Any = object.__new__(kind)
    store.url = "x://b/k"
    kept = [True]
    store._tried = lambda: ("trial", kept[0])
    store.names = did.append
    store._call = lambda act, name, do, length=0: did.append((act, name))
    store.check()
    assert did == ["manifests", ("remove", "trial")]
    kept[0] = False
    with pytest.raises(CheckpointError, match=r"^x://b/k cannot hold a checkpoint: its .* another"):
        store.check()
    assert did == ["manifests", ("remove", "trial")] * 2
    store.prepare(["a"])
    assert len(did) == 4


class Package:
    """The store of a package; what it answers is set."""

    def __init__(self, **answers: Any) -> None:
        self.did: list[Any] = []
        self.answers = answers

    def __getattr__(self, name: str) -> Any:
        def call(*given: Any) -> Any:
            self.did.append((name, *given))
            answer = self.answers[name]
            if isinstance(answer, Exception):
                raise answer
            return answer

        return call


def own(**answers: Any) -> tuple[Any, Package]:
    store: Any = object.__new__(OwnStoreFiles)
    store._store = package = Package(**answers)
    store.counted = []
    store.at = lambda name: f"at/{name}"
    store._count = lambda *told: store.counted.append(told)
    return store, package


def test_a_package_s_store_is_asked_in_its_words() -> None:
    store, package = own(
        write=None, write_new=True, read=b"found", read_range=b"f", exists=False, sizes={"a": 3},
        delete=None,
    )  # fmt: skip
    store.put("f", b"123")
    store.put_new("f", b"123")
    store.put_unique("g", b"1234")
    assert store.get_range("f", 2, 5) == b"f"
    assert store.exists("f") is False
    assert store._list("d") == {"a": 3}
    store.remove(["f", "g"])
    store.remove([])
    assert package.did == [
        ("write", "f", b"123"), ("write_new", "f", b"123"), ("write_new", "g", b"1234"),
        ("read_range", "f", 2, 5), ("exists", "f"), ("sizes", "d"), ("delete", ["f", "g"]),
    ]  # fmt: skip
    assert store.counted == [
        ("write", "f", 3), ("write", "f", 3), ("write", "g", 4), ("read", "f", 0), ("read", "f", 0),
        ("list", "d/", 0), ("remove", "f", 0),
    ]  # fmt: skip


def test_a_file_that_is_there_with_the_same_bytes_is_no_other() -> None:
    store, _ = own(write_new=False, read=b"123")
    store.put_new("f", b"123")
    for put in (store.put_new, store.put_unique):
        with pytest.raises(FileExistsError, match="at/f"):
            put("f", b"124")


def test_what_a_package_raises_is_one_sentence_without_its_text() -> None:
    store, _ = own(
        exists=OSError("secret"), read_range=CheckpointError("ours"), delete=OSError("x")
    )
    with pytest.raises(CheckpointError) as failed:
        store.exists("f")
    assert str(failed.value) == (
        "at/f: the store cannot read (OSError); see whether it can be reached."
    )
    with pytest.raises(CheckpointError, match=r"^ours$"):
        store.get_range("f", 0, 1)
    store.remove(["f"])
    missing, _ = own(read_range=None)
    missing.get = lambda name: f"all of {name}"
    assert missing.get_range("f", 0, 1) == "all of f"


# --- Meanings -----------------------------------------------------------------------------------------


def compare(old: dict[str, Any], new: dict[str, Any], *, case: bool = True) -> None:
    identity._compare_meanings({"a": old}, {"a": new}, "p", case=case)


def test_what_an_older_checkpoint_does_not_say_is_not_compared() -> None:
    for later in identity._LATER:
        compare({"k": "1"}, {"k": "1", later: "x"})
        with pytest.raises(CheckpointError):
            compare({"k": "1", later: "x"}, {"k": "1"})
    column = f"{identity.COLUMN}n"
    compare({column: "long"}, {})
    compare({}, {column: "long"})
    for old, new in (({column: "long"}, {column: "int"}), ({"k": "1"}, {}), ({}, {"k": "1"})):
        with pytest.raises(CheckpointError):
            compare(old, new)
    compare({"k": "Name"}, {"k": "nAME"}, case=False)
    with pytest.raises(CheckpointError):
        compare({"k": "Name"}, {"k": "nAME"})
    before, after = ({"a": {}, "b": {"k": n}} for n in "12")
    with pytest.raises(CheckpointError, match="k of b"):
        identity._compare_meanings(before, after, "p", case=True)
    with pytest.raises(CheckpointError, match="stateful operators"):
        identity._compare_meanings({"a": {}}, {"b": {}}, "p", case=True)
