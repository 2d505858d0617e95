"""Holds the tests for a store of your own: your test class inherits them, with any test runner.

::

    class TestMyStore(CheckpointStoreContract):
        def open_store(self, url):
            return MyStore(url, {})
"""

from __future__ import annotations

import secrets
import threading

from headgate.checkpoint.own_store import CheckpointStore


class CheckpointStoreContract:
    """Tests a store: inherit from this class, implement `open_store`, and set `scheme`."""

    scheme = "mystore"

    def open_store(self, url: str) -> CheckpointStore:
        """Return the store at `url`, which is new in each test, or the URL of an earlier store."""
        raise NotImplementedError

    def _new(self) -> CheckpointStore:
        return self.open_store(f"{self.scheme}://contract/{secrets.token_hex(8)}/headgate")

    def test_what_was_written_is_read_by_another_object(self) -> None:
        """A file can be read whole, in part and past its end, also after it replaced an older file.

        A read before the first write returns None.
        """
        store = self._new()
        assert store.read("output/one") is None
        assert store.read_range("output/one", 0, 1) is None
        for data in (b"first", b"", bytes(range(256)) * 20_000):
            store.write("output/one", data)
            other = self.open_store(store.url)
            assert other.read("output/one") == data
            assert other.exists("output/one")
            assert other.read_range("output/one", 2, 5) == data[2:7]
            assert other.read_range("output/one", 10**7, 5) == b""

    def test_a_new_file_is_never_written_over(self) -> None:
        """A second write returns False and changes nothing.

        Headgate itself checks whose bytes are there.
        """
        store = self._new()
        assert store.write_new("manifests/0", b"mine") is True
        assert store.write_new("manifests/0", b"other") is False
        assert store.read("manifests/0") == b"mine"

    def test_of_many_writers_one_gets_through(self) -> None:
        """Each writer has an object of its own, and learns whether its write got through."""
        first, begin = self._new(), threading.Barrier(8)
        won: list[int] = []

        def write(number: int) -> None:
            store = self.open_store(first.url)
            begin.wait()
            if store.write_new("manifests/7", f"writer {number}".encode()):
                won.append(number)

        threads = [threading.Thread(target=write, args=(n,)) for n in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert [f"writer {n}".encode() for n in won] == [first.read("manifests/7")]

    def test_names_and_sizes_are_those_of_a_directory(self) -> None:
        """A directory with a longer name, and the same directory at another URL, are not listed."""
        store = self._new()
        for number in range(3):
            store.write(f"manifests/{number}", b"x" * number)
        store.write("manifests-not/9", b"")
        store.write("manifests.json", b"")
        assert dict(store.sizes("manifests")) == {"0": 0, "1": 1, "2": 2}
        assert dict(store.sizes("none")) == {}
        assert dict(self._new().sizes("manifests")) == {}

    def test_what_is_deleted_is_gone(self) -> None:
        """Deleting a missing file is no error."""
        store = self._new()
        for number in range(5):
            store.write(f"output/{number}", b"x")
        store.delete([f"output/{number}" for number in range(1, 9)])
        assert dict(store.sizes("output")) == {"0": 1}
        assert not store.exists("output/3")
