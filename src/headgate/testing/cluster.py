"""A real Spark cluster on one machine: a standalone master and workers, each with its own address.

Workers on distinct loopback addresses look like distinct hosts to Spark, and each has an arena
directory of its own, so that they share no state either.
"""

from __future__ import annotations

import importlib.util
import os
import signal
import socket
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType

_WAIT_S = 60.0


class StandaloneCluster:
    """Master and workers as child processes; use it as a context manager.

    Parameters
    ----------
    directory : Path
        For logs and work files.
    workers : int
        Each at 127.0.0.11, .12, ...
    cores : int
        Per worker.
    """

    def __init__(self, directory: Path, *, workers: int = 2, cores: int = 1) -> None:
        self._directory = directory
        self._hosts = [f"127.0.0.{11 + i}" for i in range(workers)]
        self._cores = cores
        self._port = _free_port()
        self._processes: list[subprocess.Popen[bytes]] = []
        self._log = directory / "cluster.log"

    @property
    def master(self) -> str:
        """The master's address, for ``builder.master``."""
        return f"spark://127.0.0.1:{self._port}"

    @property
    def hosts(self) -> Sequence[str]:
        """Addresses of the workers."""
        return self._hosts

    def __enter__(self) -> StandaloneCluster:
        """Start the master and the workers and wait until all have registered."""
        deploy = "org.apache.spark.deploy"
        master = [f"{deploy}.master.Master", "--host", "127.0.0.1", "--port", str(self._port)]
        self._start([*master, "--webui-port", "0"])
        for host in self._hosts:
            sizes = ["--cores", str(self._cores), "--memory", "1g", "--webui-port", "0"]
            work = ["--work-dir", str(self._directory / f"work-{host}")]
            arena = self._directory / f"arena-{host}"
            arena.mkdir(mode=0o700)
            worker = [f"{deploy}.worker.Worker", "--host", host, *sizes, *work, self.master]
            self._start(worker, HEADGATE_ARENA_DIR=str(arena))
        self._await_workers()
        return self

    def _start(self, arguments: Sequence[str], **environment: str) -> None:
        home = _spark_home()
        environment = (
            os.environ | {"SPARK_HOME": str(home), "SPARK_NO_DAEMONIZE": "1"} | environment
        )
        with self._log.open("ab") as log:
            process = subprocess.Popen(
                [str(home / "bin" / "spark-class"), *arguments],
                env=environment,
                stdout=log,
                stderr=log,
                stdin=subprocess.DEVNULL,
                start_new_session=True,
            )
        self._processes.append(process)

    def _await_workers(self) -> None:
        deadline = time.monotonic() + _WAIT_S
        while self._log.read_bytes().count(b"Registering worker") < len(self._hosts):
            if time.monotonic() > deadline:
                self.close()
                msg = f"the cluster did not start within {_WAIT_S:g} s; see {self._log}."
                raise TimeoutError(msg)
            time.sleep(0.2)

    def executor_pids(self) -> list[int]:
        """Return the process ids of the executors' JVMs of this cluster."""
        found = []
        for entry in Path("/proc").iterdir():
            if not entry.name.isdecimal():
                continue
            try:
                command = (entry / "cmdline").read_bytes().decode(errors="replace")
            except OSError:
                continue
            if "CoarseGrainedExecutorBackend" in command and any(h in command for h in self._hosts):
                found.append(int(entry.name))
        return sorted(found)

    def close(self) -> None:
        """Kill everything that was started."""
        for process in reversed(self._processes):
            try:
                os.killpg(process.pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
            process.wait()
        for pid in self.executor_pids():
            os.kill(pid, signal.SIGKILL)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Stop the cluster."""
        self.close()


def _spark_home() -> Path:
    """Return where PySpark, which brings Spark along, is installed."""
    found = importlib.util.find_spec("pyspark")
    assert found is not None
    assert found.origin is not None
    return Path(found.origin).parent


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
