"""Kills a process that writes step after step with the writer of Kafka's sink, without Spark.

Each process writes the steps after the last one recorded in a file, as Spark records a batch, and is
killed with SIGKILL at a random moment, so that a step may be written and not recorded. Sometimes the
broker is killed instead, and starts again on its data. The same records go to a second topic without
transactions, as Spark's own sink writes them.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from headgate.core.errors import EngineError
from headgate.spark.settings.kafka import SERVERS, kafka_target
from headgate.spark.sinks.kafka_notes import NOTES
from headgate.spark.sinks.kafka_writer import KafkaRecord, KafkaWriter
from headgate_demo.spark.broker import Broker
from headgate_demo.spark.topics import committed, has_topic, make_topic, put

ONCE, PLAIN = "once", "plain"
_ROWS = 200
_NOTED = "noted"
_SKIPPED = "skipped"
_END_S = 120.0


@dataclass
class KafkaTrial:
    """Holds the results of a trial.

    Attributes
    ----------
    kills : Counter
        Kills of the writer and of the broker.
    steps : int
        Steps written by the end.
    repeated : int
        Steps that were delivered again, and skipped since they were already in the topic.
    lost, doubled : dict of str to int
        Records by topic that a ``read_committed`` reader misses, or sees more than once.
    open_left : int
        Records of transactions that were never committed.
    """

    kills: Counter[str] = field(default_factory=Counter)
    steps: int = 0
    repeated: int = 0
    lost: dict[str, int] = field(default_factory=dict)
    doubled: dict[str, int] = field(default_factory=dict)
    open_left: int = 0


def run_trial(
    broker: Broker, directory: Path, *, writers: int, brokers: int, seed: int
) -> KafkaTrial:
    """Kill the writer `writers` times and the broker `brokers` times; then check the topics.

    Parameters
    ----------
    broker : Broker
        A running broker.
    directory : Path
        For the writer's record of its steps.
    seed : int
        Seed of the order of kills and their moments.
    """
    chance = random.Random(seed)
    topics = {name: f"{name}-{seed}" for name in (ONCE, PLAIN)}
    for topic in topics.values():
        make_topic(broker.servers, topic, 3)
    if not has_topic(broker.servers, NOTES):
        make_topic(broker.servers, NOTES, 1)
    found = KafkaTrial()
    victims = ["writer"] * writers + ["broker"] * brokers
    chance.shuffle(victims)
    life: subprocess.Popen[bytes] | None = None
    try:
        for victim in victims:
            if life is None:
                before = _noted(directory)
                life = _live(broker.servers, directory, topics, None)
                _await_steps(directory, before, life)
            time.sleep(chance.uniform(0.0, 0.3))
            if victim == "broker":
                broker.kill()
                broker.start()
                _await_steps(directory, _noted(directory), life)
            else:
                life.send_signal(signal.SIGKILL)
                life.wait()
                life = None
            found.kills[victim] += 1
    finally:
        if life is not None:
            life.kill()
            life.wait()
    found.steps = _noted(directory) + 3
    last = _live(broker.servers, directory, topics, found.steps)
    if last.wait(_END_S):
        msg = f"the last life ended with {last.returncode}; look at what it said."
        raise EngineError(msg)
    _look(broker, directory, topics, found)
    return found


def _look(broker: Broker, directory: Path, topics: dict[str, str], found: KafkaTrial) -> None:
    wanted = {f"{step}-{row}".encode() for step in range(found.steps) for row in range(_ROWS)}
    for name, topic in topics.items():
        seen = Counter(record.key for record in committed(broker.servers, [topic]))
        found.lost[name] = len(wanted - set(seen))
        found.doubled[name] = sum(count > 1 for count in seen.values())
    every = committed(broker.servers, [topics[ONCE]], all_records=True)
    found.open_left = len(every) - found.steps * _ROWS
    skipped = directory / _SKIPPED
    found.repeated = len(skipped.read_text().splitlines()) if skipped.exists() else 0


def _live(
    servers: str, directory: Path, topics: dict[str, str], until: int | None
) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "headgate_lab.testing.kafka_trial", servers, str(directory)]
    command += [topics[ONCE], topics[PLAIN], str(-1 if until is None else until)]
    return subprocess.Popen(command)


def _await_steps(directory: Path, before: int, life: subprocess.Popen[bytes]) -> None:
    """Wait until a process has recorded a step after `before`."""
    deadline = time.monotonic() + _END_S
    while _noted(directory) <= before:
        if life.poll() is not None or time.monotonic() > deadline:
            msg = f"the writer does not go on (exit code {life.poll()}); look at what it said."
            raise EngineError(msg)
        time.sleep(0.01)


def _noted(directory: Path) -> int:
    """Return the last recorded step, -1 for none."""
    with contextlib.suppress(FileNotFoundError):
        return int((directory / _NOTED).read_text())
    return -1


# --- in the child --------------------------------------------------------------------------------


def _records(step: int, topic: str) -> Iterator[KafkaRecord]:
    for row in range(_ROWS):
        yield KafkaRecord(topic, f"{step}-{row}".encode(), b"value", None, None)


def _write(servers: str, directory: Path, once: str, plain: str, until: int) -> None:
    writer = KafkaWriter(kafka_target({SERVERS: servers, "topic": once}), "trial")
    writer.open()
    step = _noted(directory) + 1
    while step != until:
        if not writer.write(step, partial(_records, step, once)):
            with open(directory / _SKIPPED, "a", encoding="utf-8") as file:
                file.write(f"{step}\n")
        put(servers, plain, ({"key": r.key, "value": r.value} for r in _records(step, plain)))
        temporary = directory / f"{_NOTED}.{os.getpid()}"
        temporary.write_text(str(step))
        temporary.replace(directory / _NOTED)
        step += 1


if __name__ == "__main__":
    arguments = argparse.ArgumentParser(description="A life of the writer.")
    for one in ("servers", "directory", "once", "plain", "until"):
        arguments.add_argument(one)
    given = arguments.parse_args()
    _write(given.servers, Path(given.directory), given.once, given.plain, int(given.until))
