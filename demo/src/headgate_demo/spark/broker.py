"""A Kafka broker of one process on loopback, for demonstrations and tests: never for data of worth.

It is Kafka's own, with broker and controller in one process: transactions, fencing and what a killed
driver leaves open are the broker's doing, which no mock cluster has as Kafka has it. One broker has no
replicas, so a leader that moves is not seen.
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
"""A broker, and what writes down its warnings."""

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
    """A broker in KRaft mode, with controller and data in one process; a context manager.

    Parameters
    ----------
    directory : Path or None
        For its data; None for a temporary one that goes with it.
    memory : str
        Of its JVM.

    Attributes
    ----------
    servers : str
        As ``bootstrap.servers`` has it; the same after a restart.
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
        # Ivy leaves out what Spark has itself
        scala = sorted((Path(str(pyspark.__file__)).parent / "jars").glob("scala-library-*.jar"))
        self._classes = ":".join(str(jar) for jar in [*jars(KAFKA), *scala])

    def __enter__(self) -> Broker:
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
        """Start it on the data that it has, and wait until it answers.

        Raises
        ------
        EngineError
            It ends of itself, or does not answer in time.
        """
        if not (self._directory / "data").exists():
            self._format()
        with open(self._said, "ab") as said:
            self._process = subprocess.Popen(
                [*self._java(), "kafka.Kafka", str(self._settings)],
                stdout=said,
                stderr=said,
                start_new_session=True,  # an interrupt at a terminal is its starter's
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
        """Return whether its process is there."""
        return self._process is not None and self._process.poll() is None

    def kill(self) -> None:
        """End it at once, as ``kill -9`` does; `start` starts it again on the same data."""
        self._end(signal.SIGKILL)

    def stop(self) -> None:
        """End it as it wants to be ended."""
        self._end(signal.SIGTERM)

    def close(self) -> None:
        """End it, and forget its data where nobody named a directory for them."""
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
        # where the system knows how: it does not outlive who started it
        guard = ["setpriv", "--pdeathsig", "KILL"] if shutil.which("setpriv") else []
        return [
            *guard,
            java,
            f"-Xmx{self._memory}",
            "-XX:+UseSerialGC",
            "-XX:TieredStopAtLevel=1",  # it lives for minutes
            "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn",
            "-cp",
            self._classes,
        ]

    def _format(self) -> None:
        """Make the data directory ready, as ``kafka-storage.sh format`` does."""
        # never with a dash in front, which would be an option
        identity = "H" + secrets.token_urlsafe(16)[1:]
        command = ["kafka.tools.StorageTool", "format", "-t", identity, "-c", str(self._settings)]
        ran = subprocess.run([*self._java(), *command], capture_output=True, text=True, check=False)
        if ran.returncode:
            last = (ran.stdout + ran.stderr).strip().splitlines()[-1:]
            msg = f"the broker's directory {self._directory} cannot be formatted: {last}."
            raise HeadgateError(msg)

    def _answers(self) -> bool:
        # Late: demonstrations only need it, and it is an extra.
        from headgate_demo.spark.topics import answers  # noqa: PLC0415

        return answers(self.servers)


def _free_ports() -> tuple[int, int]:
    """Return two ports of loopback that nobody listens at."""
    with socket.socket() as one, socket.socket() as other:
        one.bind(("127.0.0.1", 0))
        other.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1]), int(other.getsockname()[1])
