"""Tests an implementation of a checkpoint's files; a subclass inherits the tests.

::

    class TestMyFiles(FilesContract):
        def open_files(self, directory):
            return MyFiles(directory)
"""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from headgate.checkpoint.place import Files
from headgate.core.errors import CheckpointError


class FilesContract:
    """Holds the tests; inherit, and supply `open_files`."""

    def open_files(self, directory: Path) -> Files:
        """Return files at a new location; `directory` is private to the test and may be ignored."""
        raise NotImplementedError

    @pytest.fixture
    def files(self, tmp_path: Path) -> Files:
        """Return the files under test."""
        made = self.open_files(tmp_path / "checkpoint" / "headgate")
        made.check()
        made.prepare(["manifests", "output"])
        return made

    def test_what_was_written_is_read(self, files: Files) -> None:
        """Read a file as a whole, in part and beyond its end, also after it was overwritten."""
        for data in (b"first", b"", bytes(range(256)) * 20_000):
            files.put("output/one", data)
            assert files.get("output/one") == data
            assert bytes(files.get_large("output/one")) == data
            assert files.get_range("output/one", 2, 5) == data[2:7]
            assert files.get_range("output/one", len(data), 5) == b""
            assert files.get_range("output/one", 10**7, 5) == b""
        files.put("beside", b"x", durable=False)
        assert files.get("beside") == b"x"

    def test_what_is_missing_is_an_error_that_names_it(self, files: Files) -> None:
        """A missing file does not exist, and a read raises an error with its name."""
        assert not files.exists("manifests/none")
        for read in (files.get, files.get_large):
            with pytest.raises(CheckpointError, match="none cannot be read"):
                read("manifests/none")

    def test_a_new_file_is_never_written_over(self, files: Files) -> None:
        """Other bytes are refused; the same bytes are a repeated write whose response was lost."""
        files.put_new("manifests/0", b"mine")
        with pytest.raises(FileExistsError):
            files.put_new("manifests/0", b"other")
        files.put_new("manifests/0", b"mine")
        assert files.get("manifests/0") == b"mine"

    def test_of_many_writers_one_gets_through(self, files: Files) -> None:
        """Each writer knows whether its write succeeded."""
        begin, won = threading.Barrier(8), []

        def write(number: int) -> None:
            begin.wait()
            try:
                files.put_new("manifests/7", f"writer {number}".encode())
            except FileExistsError:
                return
            won.append(number)

        threads = [threading.Thread(target=write, args=(n,)) for n in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert [f"writer {n}".encode() for n in won] == [files.get("manifests/7")]

    def test_names_and_sizes_are_those_of_a_directory(self, files: Files) -> None:
        """A directory whose name begins alike does not count."""
        for number in range(3):
            files.put_new(f"manifests/{number}", b"x" * number)
        files.put_new("output/9", b"")
        files.put("manifests-not", b"")
        assert sorted(files.names("manifests")) == ["0", "1", "2"]
        assert files.sizes("manifests") == {"0": 0, "1": 1, "2": 2}
        assert files.sizes("none") == {}

    def test_what_was_asked_for_is_counted(self, files: Files) -> None:
        """Files that count traffic count requests and written bytes."""
        before = files.traffic()
        files.put_new("output/counted", b"x" * 1000)
        written = files.traffic()
        files.get("output/counted")
        read = files.traffic()
        if before is None:
            assert (written, read) == (None, None)
            return
        assert written is not None
        assert read is not None
        assert written.since(before).requests >= 1
        assert written.since(before).written_bytes >= 1000  # noqa: PLR2004
        assert read.since(written).requests >= 1
        assert read.since(written).written_bytes == 0

    def test_what_is_removed_is_gone(self, files: Files) -> None:
        """A missing file is no error."""
        for number in range(5):
            files.put_new(f"output/{number}", b"x")
        files.remove([f"output/{number}" for number in range(1, 9)])
        assert files.names("output") == ["0"]
        files.remove([])
        assert files.names("output") == ["0"]

    def test_what_is_set_aside_can_be_looked_at(self, files: Files) -> None:
        """A damaged file remains under another name."""
        files.put("output/bad", b"?")
        assert files.set_aside("output/bad") == "bad.damaged"
        assert files.names("output") == ["bad.damaged"]
        assert files.set_aside("output/none") == ""

    def test_a_checkpoint_is_there_once_it_was_begun(self, files: Files, tmp_path: Path) -> None:
        """A checkpoint at another location is not there."""
        files.put_new("identity.json", b"{}")
        assert files.is_there()
        assert not self.open_files(tmp_path / "another" / "headgate").is_there()
