"""Runs HDFS for tests: a cluster in one process on loopback, and a fake client in memory with faults.

The cluster is Hadoop's mini cluster, from Maven, on the Hadoop that comes with PySpark.
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
    """Runs a name node and a data node in one process on loopback; a context manager.

    Parameters
    ----------
    directory : Path or None
        For their data; None for a temporary directory that `close` deletes.

    Attributes
    ----------
    url : str
        Prefix of a checkpoint's address; the same after a restart.
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
        """Start the cluster."""
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
        """Close the cluster."""
        self.close()

    def start(self) -> None:
        """Start the cluster on its existing data, and wait until it answers and has left safe mode.

        Raises
        ------
        EngineError
            The process ends, or does not answer in time.
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
        """Kill the process, as ``kill -9`` does; `start` starts it again on the same data."""
        if self._process is not None and self._process.poll() is None:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()

    def pause(self) -> None:
        """Suspend the process, so that requests get no response and connections stay open."""
        assert self._process is not None
        os.killpg(self._process.pid, signal.SIGSTOP)

    def go_on(self) -> None:
        """Resume the process after `pause`."""
        assert self._process is not None
        os.killpg(self._process.pid, signal.SIGCONT)

    def close(self) -> None:
        """Kill the process, and delete the data if their directory is temporary."""
        self.kill()
        if self._temporary:
            shutil.rmtree(self._directory, ignore_errors=True)


@contextmanager
def hdfs() -> Iterator[str]:
    """Run a cluster, and yield its address."""
    with MiniHdfs() as made:
        yield made.url


@dataclass
class FakeStatus:
    """Holds the attributes of a file that headgate reads from a listing."""

    path: str
    length: int
    isdir: bool = False


@dataclass
class FakeHdfs:
    """Imitates ``hdfs_native.Client``, with the cluster in memory and with faults.

    Attributes
    ----------
    files : dict
        Contents by path; directories are prefixes of paths.
    faults : list of (method, kind)
        Faults that have not occurred yet; each occurs once.
    late : list of (source, target, over)
        Renames under way.
    """

    files: dict[str, bytes] = field(default_factory=dict)
    faults: list[tuple[str, str]] = field(default_factory=list)
    late: list[tuple[str, str, bool]] = field(default_factory=list)
    lock: threading.RLock = field(default_factory=threading.RLock)

    def create(self, path: str, options: object) -> FakeWriter:
        """Create an empty file, which exists at once."""
        self._away("create")
        with self.lock:
            if path in self.files:
                raise FileExistsError(path)
            self.files[path] = b""
        return FakeWriter(self, path)

    def rename(self, source: str, target: str, over: bool) -> None:
        """Rename a file at once, unless there is a fault."""
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
        """Carry out the late renames, and return for each whether it took effect."""
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
        """Return the status of a file or directory."""
        self._away("get_file_info")
        if path in self.files:
            return FakeStatus(path, len(self.files[path]))
        if any(known.startswith(f"{path}/") for known in self.files):
            return FakeStatus(path, 0, isdir=True)
        raise FileNotFoundError(path)

    def list_status(self, path: str) -> Iterator[FakeStatus]:
        """Return the files in a directory."""
        self._away("list_status")
        found = [name for name in self.files if name.rpartition("/")[0] == path]
        return iter([FakeStatus(name, len(self.files[name])) for name in found])

    def delete(self, path: str, recursive: bool) -> bool:
        """Delete a file."""
        self._away("delete")
        return self.files.pop(path, None) is not None

    def mkdirs(self, path: str, permission: int, create_parent: bool) -> None:
        """Do nothing: a directory is a prefix of paths."""
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
    """Writes a file."""

    def __init__(self, cluster: FakeHdfs, path: str) -> None:
        self._cluster = cluster
        self._path = path

    def write(self, data: bytes) -> int:
        """Add bytes."""
        self._cluster.files[self._path] += data
        return len(data)

    def close(self) -> None:
        """Do nothing: all bytes are written already."""


class FakeReader:
    """Reads a file."""

    def __init__(self, data: bytes) -> None:
        self._data = data

    def __len__(self) -> int:
        return len(self._data)

    def read(self) -> bytes:
        """Return the whole content."""
        return self._data

    def read_range(self, start: int, length: int) -> bytes:
        """Return a range; as the real client, fail if the file ends before the range does."""
        if start + length > len(self._data):
            raise RuntimeError("slice index is out of range")
        return self._data[start : start + length]
