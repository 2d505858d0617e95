"""Runs a Spark cluster on one machine: a standalone master and workers, each with its own address.

For Spark, workers on distinct loopback addresses are distinct hosts. Each has its own arena directory, so
that workers share no state.
"""

from __future__ import annotations

import ctypes
import importlib.util
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

_WAIT_S = 60.0
_NAMES = Path("/run/netns")
"""Directory in which `ip` names network namespaces."""

_SET_DEATH_SIGNAL = 1
"""``PR_SET_PDEATHSIG`` of Linux's prctl."""


class StandaloneCluster:
    """Runs master and workers as child processes; a context manager.

    On Linux they are killed when the thread that started them ends, for whatever reason.

    Parameters
    ----------
    directory : Path
        For logs and work files.
    workers : int
        Number of workers, at 127.0.0.11, .12, ...
    cores : int
        Cores per worker.
    """

    _NETWORK = "127.0.0"

    def __init__(self, directory: Path, *, workers: int = 2, cores: int = 1) -> None:
        self._directory = directory
        self._hosts = [f"{self._NETWORK}.{11 + i}" for i in range(workers)]
        self._cores = cores
        self._port = _free_port()
        self._processes: list[subprocess.Popen[bytes]] = []
        self._workers: dict[str, subprocess.Popen[bytes]] = {}
        self._workers_started = 0
        self._log = directory / "cluster.log"

    @property
    def master(self) -> str:
        """The master's address, for ``builder.master``."""
        return f"spark://{self.own_host}:{self._port}"

    @property
    def own_host(self) -> str:
        """Address of the master and of a driver."""
        return f"{self._NETWORK}.1"

    @property
    def hosts(self) -> Sequence[str]:
        """Addresses of the workers."""
        return self._hosts

    def __enter__(self) -> StandaloneCluster:
        """Start the master and the workers and wait until all have registered."""
        deploy = "org.apache.spark.deploy"
        master = [f"{deploy}.master.Master", "--host", self.own_host, "--port", str(self._port)]
        self._start([*master, "--webui-port", "0"])
        for host in self._hosts:
            self._start_worker(host)
        self._await_workers()
        return self

    def _start_worker(self, host: str) -> None:
        sizes = ["--cores", str(self._cores), "--memory", "1g", "--webui-port", "0"]
        work = ["--work-dir", str(self._directory / f"work-{host}")]
        arena = self._directory / f"arena-{host}"
        arena.mkdir(mode=0o700, exist_ok=True)
        worker = ["org.apache.spark.deploy.worker.Worker", "--host", host, *sizes, *work]
        command = [*worker, self.master]
        self._workers[host] = self._start(
            command, self._within(host), HEADGATE_ARENA_DIR=str(arena)
        )
        self._workers_started += 1

    def _within(self, host: str) -> list[str]:
        """Return the prefix of a command that runs it on a host."""
        return []

    def arenas(self) -> list[Path]:
        """Return the arena directory of each host."""
        return [self._directory / f"arena-{host}" for host in self._hosts]

    def kill_worker(self, host: str) -> None:
        """Kill a host's Spark worker with SIGKILL; its executors end a moment later."""
        self._workers[host].kill()
        self._workers[host].wait()

    def host_pids(self, host: str, *others: int) -> list[int]:
        """Return the processes in the session of a host's worker, and in those of other processes."""
        sessions = {self._workers[host].pid, *(os.getsid(pid) for pid in others)}
        return [one.pid for one in _running() if one.session in sessions]

    def restart_worker(self, host: str) -> None:
        """Start a host's Spark worker anew and wait until it has registered."""
        self._start_worker(host)
        self._await_workers()

    def _start(
        self, arguments: Sequence[str], within: Sequence[str] = (), **more: str
    ) -> subprocess.Popen[bytes]:
        home = _spark_home()
        settings = {
            "SPARK_HOME": str(home),
            "SPARK_NO_DAEMONIZE": "1",
            # by default the master gives up an application after ten consecutive executor failures
            "SPARK_MASTER_OPTS": "-Dspark.deploy.maxExecutorRetries=-1",
        }
        environment = os.environ | settings | more
        with self._log.open("ab") as log:
            process = subprocess.Popen(
                [*within, str(home / "bin" / "spark-class"), *arguments],
                env=environment,
                stdout=log,
                stderr=log,
                stdin=subprocess.DEVNULL,
                start_new_session=True,
                # one system call between fork and exec, no lock in it
                preexec_fn=_die_with_parent if sys.platform == "linux" else None,  # noqa: PLW1509
            )
        self._processes.append(process)
        return process

    def _await_workers(self) -> None:
        deadline = time.monotonic() + _WAIT_S
        while self._log.read_bytes().count(b"Registering worker") < self._workers_started:
            if time.monotonic() > deadline:
                self.close()
                msg = f"the cluster did not start within {_WAIT_S:g} s; see {self._log}."
                raise TimeoutError(msg)
            time.sleep(0.2)

    def executor_pids(self) -> list[int]:
        """Return the process ids of the executors' JVMs of this cluster."""
        # other clusters may use the same addresses, so match by the workers' sessions
        sessions = {process.pid for process in self._processes}
        return [
            one.pid
            for one in _running()
            if one.session in sessions and "CoarseGrainedExecutorBackend" in one.command
        ]

    def python_worker_pids(self) -> list[int]:
        """Return the process ids of the executors' Python workers, without their daemons."""
        executors = set(self.executor_pids())
        running = _running()
        daemons = {one.pid for one in running if one.parent in executors}
        return [one.pid for one in running if one.parent in daemons]

    def close(self) -> None:
        """Kill all processes of the cluster."""
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


class NetworkedCluster(StandaloneCluster):
    """Runs a cluster whose hosts have separate network namespaces, so that one can be cut off.

    Needs root and iproute2. Run it in a program that was started with ``unshare --net --mount``, so that
    its networks are not visible outside, and vanish with the program.
    """

    _NETWORK = "10.77.0"

    def __enter__(self) -> NetworkedCluster:
        """Make the networks, and start the cluster."""
        _NAMES.mkdir(exist_ok=True)
        subprocess.run(["mount", "-t", "tmpfs", "names", str(_NAMES)], check=True)
        _ip("link set lo up")
        _ip("link add hosts type bridge")
        _ip("link set hosts up")
        _ip(f"addr add {self.own_host}/24 dev hosts")
        for number, host in enumerate(self.hosts):
            _ip(f"netns add host{number}")
            _ip(f"link add port{number} type veth peer name eth0 netns host{number}")
            _ip(f"link set port{number} up master hosts")
            _ip(f"-n host{number} link set lo up")
            _ip(f"-n host{number} addr add {host}/24 dev eth0")
            _ip(f"-n host{number} link set eth0 up")
        super().__enter__()
        return self

    def _within(self, host: str) -> list[str]:
        return ["ip", "netns", "exec", f"host{self.hosts.index(host)}"]

    def cut_off(self, host: str) -> None:
        """Silently drop all packets between a host and the others from now on."""
        _ip(f"link set port{self.hosts.index(host)} nomaster")

    def join_again(self, host: str) -> None:
        """Stop dropping packets of a host."""
        _ip(f"link set port{self.hosts.index(host)} master hosts")

    def part(self, *, parted: bool = True) -> None:
        """Drop all packets between hosts from now on, or none; the driver still reaches all hosts."""
        for number in range(len(self.hosts)):
            kind = "on" if parted else "off"
            _ip(f"link set port{number} type bridge_slave isolated {kind}")


def _ip(words: str) -> None:
    subprocess.run(["ip", *words.split()], check=True)


@dataclass(frozen=True)
class _Process:
    pid: int
    parent: int
    session: int
    command: str


def _running() -> list[_Process]:
    """Return the processes of this machine, by process id."""
    found = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdecimal():
            continue
        try:
            command = (entry / "cmdline").read_bytes().decode(errors="replace")
            # after the name in parentheses: state, parent, group, session
            after = (entry / "stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue  # the process has just ended
        found.append(_Process(int(entry.name), int(after[1]), int(after[3]), command))
    return sorted(found, key=lambda one: one.pid)


_libc = ctypes.CDLL(None)


def _die_with_parent() -> None:
    _libc.prctl(_SET_DEATH_SIGNAL, signal.SIGKILL)


def _spark_home() -> Path:
    """Return the directory of PySpark, which contains Spark."""
    found = importlib.util.find_spec("pyspark")
    assert found is not None
    assert found.origin is not None
    return Path(found.origin).parent


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
