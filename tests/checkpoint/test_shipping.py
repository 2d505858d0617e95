"""A journal on a store: nothing is lost, doubled or torn, whoever writes and reads."""

from __future__ import annotations

import stat
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from headgate.checkpoint import shipping
from headgate.checkpoint.checkpoint import Checkpoint
from headgate.checkpoint.place import Files, PosixFiles, files_at
from headgate.checkpoint.shipping import JournalCopy, JournalShipper, resume_shipping
from headgate.core.errors import CheckpointError
from headgate_lab.testing import s3_server
from headgate_lab.testing.s3_server import BUCKET, FaultyS3, S3Fault

pytest.importorskip("obstore", reason="needs headgate[store]")


@pytest.fixture
def store() -> Iterator[FaultyS3]:
    with s3_server.serving() as made:
        yield made


@pytest.fixture
def files(store: FaultyS3) -> Files:
    return files_at(f"s3://{BUCKET}/ck", "headgate", store.options)


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shipping, "_EVERY_S", 3600.0)
    monkeypatch.setattr(shipping, "_PIECE_BYTES", 100)


def add(path: Path, text: str) -> None:
    with open(path, "a", encoding="utf-8") as file:
        file.write(text)


def test_whole_lines_of_every_driver_are_read_in_their_order(files: Files, tmp_path: Path) -> None:
    expected = ""
    copy = JournalCopy(files, tmp_path / "copy")
    for driver in range(2):
        path = tmp_path / f"journal-{driver}"
        shipper = JournalShipper(files, path)
        shipper.ship()
        for number in range(40):
            line = f"driver {driver} line {number}\n"
            add(path, line)
            expected += line
            shipper.ship()
            if number % 7 == 0:
                copy.refresh()
        add(path, "torn")
        shipper.close()
    copy.refresh()
    assert (tmp_path / "copy").read_text() == expected
    JournalCopy(files, tmp_path / "whole").refresh()
    assert (tmp_path / "whole").read_text() == expected
    assert len(files.names("journal")) > 10


def test_a_driver_that_starts_elsewhere_has_the_journal_and_ships_what_it_adds(
    files: Files, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for driver in range(3):
        path = tmp_path / f"journal-{driver}"
        if driver == 2:
            monkeypatch.setattr(shipping, "_COPIED_MAX_BYTES", 10)
        shipper = resume_shipping(files, path)
        add(path, f"driver {driver}\n")
        shipper.close()
    assert (tmp_path / "journal-1").read_text() == "driver 0\ndriver 1\n"
    assert (tmp_path / "journal-2").read_text() == "driver 2\n", "it is long, and stays where it is"
    JournalCopy(files, tmp_path / "copy").refresh()
    assert (tmp_path / "copy").read_text() == "driver 0\ndriver 1\ndriver 2\n"


def test_a_store_that_was_away_gets_all_of_it(
    files: Files, store: FaultyS3, tmp_path: Path
) -> None:
    path = tmp_path / "journal"
    shipper = JournalShipper(files, path)
    for number in range(30):
        add(path, f"line {number}\n")
        if number % 3 == 0:
            store.faults.append(S3Fault(s3_server.FORBIDDEN, part="journal"))
            with pytest.raises(CheckpointError):
                shipper.ship()
        if number % 4 == 0:
            shipper.ship()
    shipper.close()
    JournalCopy(files, tmp_path / "copy").refresh()
    assert (tmp_path / "copy").read_text() == path.read_text()


def test_what_comes_between_two_looks_is_read(
    files: Files, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files.put(shipping.piece(0), b"first\n")
    looked = files.exists

    def exists(name: str) -> bool:
        if name == shipping.piece(1) and not looked(name):
            files.put(shipping.piece(0), b"first\nsecond\n")
            files.put(name, b"third\n")
        return looked(name)

    copy = JournalCopy(files, tmp_path / "copy")
    monkeypatch.setattr(files, "exists", exists)
    copy.refresh()
    assert (tmp_path / "copy").read_text() == "first\nsecond\nthird\n"


def test_two_drivers_at_once_do_not_write_over_each_other(files: Files, tmp_path: Path) -> None:
    paths = [tmp_path / "one", tmp_path / "two"]
    shippers = [JournalShipper(files, path) for path in paths]
    for number in range(40):
        for path, shipper in zip(paths, shippers, strict=True):
            add(path, f"{path.name} {number}\n")
            shipper.ship()
    for shipper in shippers:
        shipper.close()
    JournalCopy(files, tmp_path / "copy").refresh()
    found = (tmp_path / "copy").read_text().splitlines()
    assert sorted(found) == sorted(f"{p.name} {n}" for p in paths for n in range(40))


class Idle(threading.Thread):
    """A thread that does nothing, so that a test ships when it wants to."""

    def __init__(self, **_: object) -> None:
        super().__init__(daemon=True)


def test_pieces_begin_where_the_one_before_is_full(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shipping.threading, "Thread", Idle)
    monkeypatch.setattr(shipping, "_PIECE_BYTES", 20)
    files, journal = PosixFiles(tmp_path / "store"), tmp_path / "journal.jsonl"
    files.prepare([shipping.DIRECTORY])
    shipper = JournalShipper(files, journal)
    shipper.ship()
    assert files.names(shipping.DIRECTORY) == []
    copy, found = JournalCopy(files, tmp_path / "copy"), []
    for line in (b"a" * 9, b"b" * 8, b"c" * 1, b"d" * 30, b"e", b"f" * 19):
        with open(journal, "ab") as file:
            file.write(line + b"\nrest"[: 1 + 4 * (line == b"c")])
        shipper.ship()
        shipper.ship()
        sizes = files.sizes(shipping.DIRECTORY)
        found.append([sizes[name] for name in sorted(sizes)])
        assert copy.refresh()
        assert not copy.refresh()
    whole = journal.read_bytes()
    assert (tmp_path / "copy").read_bytes() == whole
    assert found == [[10], [19], [21], [21, 35], [21, 35, 2], [21, 35, 22]]
    assert sorted(files.names(shipping.DIRECTORY)) == [f"{n:012d}" for n in range(3)]
    assert stat.S_IMODE((tmp_path / "copy").stat().st_mode) == 0o600


def test_a_journal_is_brought_up_to_a_size_and_another_driver_goes_on_behind_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shipping.threading, "Thread", Idle)
    files = PosixFiles(tmp_path / "store")
    files.prepare([shipping.DIRECTORY])
    files.put_new(shipping.piece(3), b"old\n")
    for most, brought in ((4, b"old\n"), (3, None)):
        monkeypatch.setattr(shipping, "_COPIED_MAX_BYTES", most)
        journal = tmp_path / f"journal-{most}"
        shipper = resume_shipping(files, journal)
        assert (journal.read_bytes() if journal.exists() else None) == brought
        with open(journal, "ab") as file:
            file.write(b"new\n")
        shipper.ship()
        assert files.get(shipping.piece(4 if most == 4 else 5)) == b"new\n"
    whole = JournalCopy(files, tmp_path / "copy")
    assert whole.refresh()
    assert (tmp_path / "copy").read_bytes() == b"old\nnew\nnew\n"


@pytest.mark.parametrize("shared", [False, True])
def test_the_journal_of_a_store_is_a_copy_while_it_is_looked_at(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, shared: bool
) -> None:
    checkpoint = Checkpoint(tmp_path)
    checkpoint.files.prepare([shipping.DIRECTORY])
    checkpoint.files.put_new(shipping.piece(0), b"a line\n")
    monkeypatch.setattr(checkpoint.files, "shared", shared, raising=False)
    with shipping.journal_at(checkpoint) as found:
        if shared:
            assert found.read_bytes() == b"a line\n"
            assert tmp_path not in found.parents
        else:
            assert found == tmp_path / "headgate" / "journal.jsonl"
    assert not found.exists()
