"""What was read is kept on the local disk."""

import errno
import tempfile

import numpy as np
import pytest

from headgate.checkpoint import spool
from headgate.checkpoint.spool import Spool
from headgate_lab.testing.descriptors import held

LARGE = [np.random.default_rng(n).bytes(100_000 + n) for n in range(3)]


def test_what_is_kept_are_the_same_bytes_and_no_memory():
    one = Spool()
    kept = [one.put(data) for data in LARGE]
    assert all(isinstance(view, memoryview) and view.readonly for view in kept)
    assert [bytes(view) for view in kept] == LARGE
    assert one.put(kept[0]) is kept[0]
    one.clear()
    assert bytes(one.put(LARGE[2])) == LARGE[2]
    assert [bytes(view) for view in kept] == LARGE


def test_all_of_it_takes_one_descriptor(monkeypatch, tmp_path):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    one = Spool()
    one.put(LARGE[0])
    before = held(tmp_path)
    kept = [one.put(data) for data in LARGE * 10]
    assert held(tmp_path) == before
    assert kept


def test_its_file_has_no_name_and_is_closed_with_it(monkeypatch, tmp_path):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    before = held(tmp_path)
    one = Spool()
    view = one.put(LARGE[0])
    assert list(tmp_path.iterdir()) == []
    assert held(tmp_path) == before + 2, "the file, and its mapping"
    one.clear()
    del view
    assert held(tmp_path) == before


def test_few_bytes_stay_where_they_are():
    data = b"few"
    assert Spool().put(data) is data


def test_without_room_on_the_disk_bytes_stay_in_memory(monkeypatch):
    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    one = Spool()
    first = one.put(LARGE[0])
    monkeypatch.setattr(spool.os, "pwrite", full)
    assert one.put(LARGE[1]) is LARGE[1]
    monkeypatch.undo()
    assert bytes(one.put(LARGE[2])) == LARGE[2]
    assert bytes(first) == LARGE[0]


@pytest.mark.parametrize("room", [150_000, 90_000])
def test_when_its_room_is_used_up_it_begins_anew(monkeypatch, room):
    monkeypatch.setattr(spool, "_ROOM_BYTES", room)
    one = Spool()
    kept = [one.put(data) for data in LARGE]
    assert [bytes(view) for view in kept] == LARGE
