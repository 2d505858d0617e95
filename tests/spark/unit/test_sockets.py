"""The directories of sockets: one for a process, and none left of processes that were killed."""

import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from headgate.spark.cluster.sockets import sweep

_HOLD = """
import tempfile, sys, time
tempfile.tempdir = sys.argv[1]
from headgate.spark.cluster.sockets import socket_directory
print(socket_directory(), flush=True)
time.sleep(60)
"""


@pytest.fixture
def place() -> Iterator[Path]:
    """A directory with a path short enough for sockets, which pytest's own is not."""
    with tempfile.TemporaryDirectory(prefix="t") as made:
        yield Path(made)


def _holder(parent: Path) -> tuple[subprocess.Popen[str], Path]:
    child = subprocess.Popen(
        [sys.executable, "-c", _HOLD, str(parent)], stdout=subprocess.PIPE, text=True
    )
    assert child.stdout is not None
    return child, Path(child.stdout.readline().strip())


def test_a_killed_processs_directory_goes_and_a_living_ones_stays(place: Path) -> None:
    (place / "hg-of-somebody-else").mkdir()
    child, made = _holder(place)
    try:
        assert made.parent == place
        assert made.stat().st_mode & 0o777 == 0o700
        (made / "a.sock").touch()
        assert sweep(place) == []
        child.send_signal(signal.SIGKILL)
        child.wait()
        assert sweep(place) == [made]
        assert not made.exists()
        assert (place / "hg-of-somebody-else").exists()
    finally:
        child.kill()
        child.wait()
        assert child.stdout is not None
        child.stdout.close()


def test_a_lock_that_is_a_link_is_nobodys(place: Path) -> None:
    made, other = place / "hg-linked", place / "other"
    made.mkdir()
    other.touch()
    (made / ".in-use").symlink_to(other)
    assert sweep(place) == []
    assert made.exists()


def test_the_next_process_takes_away_what_a_killed_one_left(place: Path) -> None:
    first, left = _holder(place)
    first.kill()
    first.wait()
    second, made = _holder(place)
    for child in (first, second):
        child.kill()
        child.wait()
        assert child.stdout is not None
        child.stdout.close()
    assert not left.exists()
    assert made.exists()


def test_where_the_temporary_directory_has_no_room_a_killed_processs_directory_goes_too(
    place: Path,
) -> None:
    deep = place / ("d" * 90)
    deep.mkdir()
    child, made = _holder(deep)
    with child:
        child.kill()
    assert made.parent == Path("/tmp")
    assert list(deep.iterdir()) == []
    assert made in sweep(Path("/tmp"))
    assert not made.exists()
