"""HDFS for tests: a cluster of one process on loopback, and a client in memory whose answers get lost.

The cluster is Hadoop's own mini cluster, from Maven, on the Hadoop that comes with PySpark.
"""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType

import pyspark

from headgate.core.errors import EngineError
from headgate_demo.spark.jars import jars

_STARTS_S = 200.0
_POLL_S = 0.1
_MAIN = "org.apache.hadoop.test.MiniDFSClusterManager"

LOST, AWAY, LATE = (
    "lost",  # done, and nobody says so
    "away",  # not done
    "late",  # not done; done when `FakeHdfs.deliver` is called
)


class MiniHdfs:
    """A name node and a data node in one process on loopback; a context manager.

    Parameters
    ----------
    directory : Path or None
        For their data; None for a temporary one that goes with it.

    Attributes
    ----------
    url : str
        As a checkpoint's place begins; the same after a restart.
    """

    def __init__(self, directory: Path | None = None) -> None:
        self._temporary = directory is None
        self._directory = directory or Path(tempfile.mkdtemp(prefix="headgate-hdfs-"))
        self._directory.mkdir(parents=True, exist_ok=True)
        with socket.create_server(("127.0.0.1", 0)) as free:
            self._port = free.getsockname()[1]
        self.url = f"hdfs://127.0.0.1:{self._port}"
        self._said = self._directory / "said"
        self._process: subprocess.Popen[bytes] | None = None
        here = Path(str(pyspark.__file__)).parent / "jars"
        (client,) = here.glob("hadoop-client-api-*.jar")
        version = client.stem.rpartition("-")[2]
        group = "org.apache.hadoop:hadoop-client"
        fetched = jars(
            (f"{group}-minicluster:{version}",), without=(f"{group}-api", f"{group}-runtime")
        )
        self._classes = ":".join([*map(str, fetched), f"{here}/*"])

    def __enter__(self) -> MiniHdfs:
        """Start it."""
        try:
            self.start()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """End it."""
        self.close()

    def start(self) -> None:
        """Start it on the data that it has, and wait until it answers and has left its safe mode.

        Raises
        ------
        EngineError
            It ends of itself, or does not answer in time.
        """
        details = self._directory / "details"
        details.unlink(missing_ok=True)
        fresh = [] if (self._directory / "dfs").exists() else ["-format"]
        home = os.environ.get("JAVA_HOME")
        command = [f"{home}/bin/java" if home else "java", "-Xmx384m", "-XX:+UseSerialGC"]
        command += [f"-Dtest.build.data={self._directory}", f"-Dhadoop.log.dir={self._directory}"]
        command += ["-cp", self._classes, _MAIN, *fresh, "-datanodes", "1"]
        command += ["-nnport", str(self._port), "-writeDetails", str(details)]
        with open(self._said, "ab") as said:
            self._process = subprocess.Popen(
                [*command, "-D", f"hdfs.minidfs.basedir={self._directory}/dfs"],
                stdout=said,
                stderr=said,
                start_new_session=True,
            )
        deadline = time.monotonic() + _STARTS_S
        while not details.exists():
            code = self._process.poll()
            if code is not None or time.monotonic() > deadline:
                how = "does not answer" if code is None else f"ended with code {code}"
                last = self._said.read_text(errors="replace").strip().splitlines()[-1:]
                msg = f"HDFS at {self.url} {how}: {last}; look into {self._said}."
                raise EngineError(msg)
            time.sleep(_POLL_S)

    def kill(self) -> None:
        """End it at once, as ``kill -9`` does; `start` starts it again on the same data."""
        if self._process is not None and self._process.poll() is None:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()

    def pause(self) -> None:
        """Stop it, so that nothing is answered and no connection ends."""
        assert self._process is not None
        os.killpg(self._process.pid, signal.SIGSTOP)

    def go_on(self) -> None:
        """Let it go on after `pause`."""
        assert self._process is not None
        os.killpg(self._process.pid, signal.SIGCONT)

    def close(self) -> None:
        """End it, and forget its data where nobody named a directory for them."""
        self.kill()
        if self._temporary:
            shutil.rmtree(self._directory, ignore_errors=True)


@contextmanager
def hdfs() -> Iterator[str]:
    """Yield the address of a cluster that is there meanwhile."""
    with MiniHdfs() as made:
        yield made.url


@dataclass
class FakeStatus:
    """Holds the entries of a listing that are read of a file."""

    path: str
    length: int
    isdir: bool = False


@dataclass
class FakeHdfs:
    """A client of HDFS with the cluster in memory; its calls are those of ``hdfs_native.Client``.

    Attributes
    ----------
    files : dict
        By path; directories are what paths begin with.
    faults : list of (method, kind)
        What is still to happen, in turn.
    late : list of (source, target, over)
        Renames that are under way.
    """

    files: dict[str, bytes] = field(default_factory=dict)
    faults: list[tuple[str, str]] = field(default_factory=list)
    late: list[tuple[str, str, bool]] = field(default_factory=list)
    lock: threading.RLock = field(default_factory=threading.RLock)

    def create(self, path: str, options: object) -> FakeWriter:
        """Create a file, which is there and empty from now on."""
        self._away("create")
        with self.lock:
            if path in self.files:
                raise FileExistsError(path)
            self.files[path] = b""
        return FakeWriter(self, path)

    def rename(self, source: str, target: str, over: bool) -> None:
        """Rename a file, at once."""
        fault = self._fault("rename")
        if fault == LATE:
            self.late.append((source, target, over))
        if fault in (LATE, AWAY):
            raise OSError("connection reset")
        self._renamed(source, target, over)
        if fault == LOST:
            raise OSError("connection reset")

    def _renamed(self, source: str, target: str, over: bool) -> None:
        with self.lock:
            if source not in self.files:
                raise FileNotFoundError(source)
            if target in self.files and not over:
                raise FileExistsError(target)
            self.files[target] = self.files.pop(source)

    def deliver(self) -> list[bool]:
        """Do what was late, and return which of it took effect."""
        late, self.late = self.late, []
        done = []
        for source, target, over in late:
            try:
                self._renamed(source, target, over)
            except OSError:
                done.append(False)
            else:
                done.append(True)
        return done

    def read(self, path: str) -> FakeReader:
        """Open a file."""
        self._away("read")
        if path not in self.files:
            raise FileNotFoundError(path)
        return FakeReader(self.files[path])

    def get_file_info(self, path: str) -> FakeStatus:
        """Return a status."""
        self._away("get_file_info")
        if path in self.files:
            return FakeStatus(path, len(self.files[path]))
        if any(known.startswith(f"{path}/") for known in self.files):
            return FakeStatus(path, 0, isdir=True)
        raise FileNotFoundError(path)

    def list_status(self, path: str) -> Iterator[FakeStatus]:
        """Return what lies in a directory."""
        self._away("list_status")
        found = [name for name in self.files if name.rpartition("/")[0] == path]
        return iter([FakeStatus(name, len(self.files[name])) for name in found])

    def delete(self, path: str, recursive: bool) -> bool:
        """Delete a file."""
        self._away("delete")
        return self.files.pop(path, None) is not None

    def mkdirs(self, path: str, permission: int, create_parent: bool) -> None:
        """Make nothing: a directory is what a path begins with."""
        self._away("mkdirs")

    def _away(self, method: str) -> None:
        if self._fault(method) is not None:
            raise OSError("connection refused")

    def _fault(self, method: str) -> str | None:
        with self.lock:
            for fault in self.faults:
                if fault[0] == method:
                    self.faults.remove(fault)
                    return fault[1]
        return None


class FakeWriter:
    """A file that is being written."""

    def __init__(self, cluster: FakeHdfs, path: str) -> None:
        self._cluster = cluster
        self._path = path

    def write(self, data: bytes) -> int:
        """Add bytes."""
        self._cluster.files[self._path] += data
        return len(data)

    def close(self) -> None:
        """Do nothing: every byte is there."""


class FakeReader:
    """A file that is being read."""

    def __init__(self, data: bytes) -> None:
        self._data = data

    def __len__(self) -> int:
        return len(self._data)

    def read(self) -> bytes:
        """Return all of it."""
        return self._data

    def read_range(self, start: int, length: int) -> bytes:
        """Return some of it; the client panics where it ends before."""
        if start + length > len(self._data):
            raise RuntimeError("slice index is out of range")
        return self._data[start : start + length]
