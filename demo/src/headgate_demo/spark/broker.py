"""Runs a Kafka broker in one process on loopback, for demonstrations and tests, not for valuable data.

The process is Kafka's own, broker and controller together. A mock cluster would not do transactions,
fencing, and the open transactions of a killed driver as Kafka does. A single broker has no replicas, so
a change of leader cannot be tested.
"""

from __future__ import annotations

import os
import secrets
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from pathlib import Path
from types import TracebackType

import pyspark

from headgate.core.errors import EngineError, HeadgateError
from headgate_demo.spark.jars import jars

KAFKA = ("org.apache.kafka:kafka_2.13:4.1.1", "org.slf4j:slf4j-simple:1.7.36")
"""Maven coordinates of the broker, and of the logger for its warnings."""

_STARTS_S = 120.0
_STOPS_S = 20.0
_POLL_S = 0.1

_SETTINGS = """\
process.roles=broker,controller
node.id=1
controller.quorum.voters=1@127.0.0.1:{controller}
listeners=PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller}
advertised.listeners=PLAINTEXT://127.0.0.1:{port}
controller.listener.names=CONTROLLER
listener.security.protocol.map=CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT
log.dirs={data}
auto.create.topics.enable=false
offsets.topic.replication.factor=1
offsets.topic.num.partitions=2
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
transaction.state.log.num.partitions=2
share.coordinator.state.topic.replication.factor=1
share.coordinator.state.topic.min.isr=1
group.initial.rebalance.delay.ms=0
broker.session.timeout.ms=3000
broker.heartbeat.interval.ms=500
transaction.abort.timed.out.transaction.cleanup.interval.ms=1000
log.cleaner.dedupe.buffer.size=4194304
num.network.threads=2
num.io.threads=2
"""


class Broker:
    """Runs a broker in KRaft mode, with the controller in the same process; a context manager.

    Parameters
    ----------
    directory : Path or None
        For its data; None for a temporary directory that `close` deletes.
    memory : str
        Heap of the JVM.

    Attributes
    ----------
    servers : str
        Value for ``bootstrap.servers``; the same after a restart.
    """

    def __init__(self, directory: Path | None = None, memory: str = "256m") -> None:
        self._temporary = directory is None
        self._directory = directory or Path(tempfile.mkdtemp(prefix="headgate-kafka-"))
        self._memory = memory
        self._port, controller = _free_ports()
        self.servers = f"127.0.0.1:{self._port}"
        self._process: subprocess.Popen[bytes] | None = None
        self._settings = self._directory / "server.properties"
        self._said = self._directory / "said"
        self._directory.mkdir(parents=True, exist_ok=True)
        text = _SETTINGS.format(
            port=self._port, controller=controller, data=self._directory / "data"
        )
        self._settings.write_text(text, encoding="utf-8")
        # Ivy omits the jars that Spark has itself
        scala = sorted((Path(str(pyspark.__file__)).parent / "jars").glob("scala-library-*.jar"))
        self._classes = ":".join(str(jar) for jar in [*jars(KAFKA), *scala])

    def __enter__(self) -> Broker:
        """Start the broker."""
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
        """Close the broker."""
        self.close()

    def start(self) -> None:
        """Start the broker on its existing data, and wait until it answers.

        Raises
        ------
        EngineError
            The process ends, or does not answer in time.
        """
        if not (self._directory / "data").exists():
            self._format()
        with open(self._said, "ab") as said:
            self._process = subprocess.Popen(
                [*self._java(), "kafka.Kafka", str(self._settings)],
                stdout=said,
                stderr=said,
                start_new_session=True,  # Ctrl-C at a terminal must only reach the starter
            )
        deadline = time.monotonic() + _STARTS_S
        while not self._answers():
            code = self._process.poll()
            if code is not None or time.monotonic() > deadline:
                how = "does not answer" if code is None else f"ended with code {code}"
                last = self._said.read_text(errors="replace").strip().splitlines()[-1:]
                msg = f"the broker at {self.servers} {how}: {last}; look into {self._said}."
                raise EngineError(msg)
            time.sleep(_POLL_S)

    @property
    def runs(self) -> bool:
        """Return whether the process runs."""
        return self._process is not None and self._process.poll() is None

    def kill(self) -> None:
        """Kill the process, as ``kill -9`` does; `start` starts it again on the same data."""
        self._end(signal.SIGKILL)

    def stop(self) -> None:
        """Shut the broker down in order."""
        self._end(signal.SIGTERM)

    def close(self) -> None:
        """Kill the process, and delete the data if their directory is temporary."""
        self.kill()
        if self._temporary:
            shutil.rmtree(self._directory, ignore_errors=True)

    def _end(self, how: signal.Signals) -> None:
        if self._process is None:
            return
        self._process.send_signal(how)
        try:
            self._process.wait(_STOPS_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process = None

    def _java(self) -> list[str]:
        home = os.environ.get("JAVA_HOME")
        java = f"{home}/bin/java" if home else "java"
        # where setpriv exists, the broker ends with the process that started it
        guard = ["setpriv", "--pdeathsig", "KILL"] if shutil.which("setpriv") else []
        return [
            *guard,
            java,
            f"-Xmx{self._memory}",
            "-XX:+UseSerialGC",
            "-XX:TieredStopAtLevel=1",  # the process lives for minutes only
            "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn",
            "-cp",
            self._classes,
        ]

    def _format(self) -> None:
        """Format the data directory, as ``kafka-storage.sh format`` does."""
        # with a leading dash the identity would be read as an option
        identity = "H" + secrets.token_urlsafe(16)[1:]
        command = ["kafka.tools.StorageTool", "format", "-t", identity, "-c", str(self._settings)]
        ran = subprocess.run([*self._java(), *command], capture_output=True, text=True, check=False)
        if ran.returncode:
            last = (ran.stdout + ran.stderr).strip().splitlines()[-1:]
            msg = f"the broker's directory {self._directory} cannot be formatted: {last}."
            raise HeadgateError(msg)

    def _answers(self) -> bool:
        # Imported late: the module needs the extra with Kafka's client.
        from headgate_demo.spark.topics import answers  # noqa: PLC0415

        return answers(self.servers)


def _free_ports() -> tuple[int, int]:
    """Return two free ports of loopback."""
    with socket.socket() as one, socket.socket() as other:
        one.bind(("127.0.0.1", 0))
        other.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1]), int(other.getsockname()[1])
