"""What waits for Spark's JVM goes on when the JVM is gone, and says so."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
from pathlib import Path
from types import SimpleNamespace

import pytest
from py4j.protocol import Py4JNetworkError
from pyspark.errors import StreamingQueryException

import headgate as hg
from headgate.core.errors import EngineError, EngineGone, HeadgateError
from headgate.spark.api.ending import Ending
from headgate.spark.jvm import life
from headgate.spark.jvm.life import JvmLife

SENTENCE = r"Spark's JVM is gone.*start the job again"

# The query is one that never ends; the JVM is killed once a step was committed.
SCRIPT = """
import json, os, signal, sys, threading
from pathlib import Path
import headgate as hg
from headgate.journal.reader import Tail
from headgate.journal.schema import Batch

work = sys.argv[1]
spark = hg.session(master="local[2]")
rows = spark.readStream.format("rate").option("rowsPerSecond", 50).load()
counts = rows.groupBy(rows.value % 3).count()
kept = hg.writeStream(counts).outputMode("complete").format("memory").queryName("kept")
query = kept.option("checkpointLocation", work + "/checkpoint").start()
tail, begun = Tail(query.journal), False
while not begun:
    begun = any(isinstance(event, Batch) for event in tail.events())
    assert not query.awaitTermination(0.1)
arena = query._work.run.path
assert arena.exists()
said = {}

def asked(name, call):
    def ask():
        try:
            said[name] = f"came back with {call()}"
        except Exception as error:
            said[name] = f"{type(error).__name__}: {error}"
    thread = threading.Thread(target=ask, daemon=True)
    thread.start()
    return thread

waiting = [
    asked("awaitTermination", query.awaitTermination),
    asked("drain", lambda: query.drain(1e6)),
    asked("processAllAvailable", query.processAllAvailable),
]
os.kill(spark.sparkContext._gateway.proc.pid, signal.SIGKILL)
for thread in waiting:
    thread.join()
asked("stop", query.stop).join()
asked("lastProgress", lambda: query.lastProgress).join()
asked("scale", lambda: query.scale(2)).join()
end = json.loads(Path(query.journal).read_text().splitlines()[-1])
print(json.dumps({"said": said, "end": end, "arena": (arena / "ended").exists() or not arena.exists()}))
sys.stdout.flush()
query.awaitTermination()
"""


def test_every_wait_ends_when_the_jvm_is_killed(tmp_path: Path) -> None:
    ran = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=500,
        check=False,
    )
    assert ran.stdout, ran.stderr
    found = json.loads(ran.stdout.splitlines()[-1])
    for name in ("awaitTermination", "drain", "processAllAvailable", "stop", "lastProgress"):
        assert found["said"][name].startswith("EngineGone: Spark's JVM is gone"), name
    assert "has ended (Spark's JVM is gone" in found["said"]["scale"]
    assert found["end"]["event"] == "stop"
    assert found["end"]["reason"] == "failed"
    assert "JVM is gone" in found["end"]["error"]
    assert found["arena"]
    # the failure leaves the program, and nothing keeps the program from its end
    assert ran.returncode == 1
    assert ran.stderr.strip().splitlines()[-1].startswith("headgate.core.errors.EngineGone: Spark")


def test_a_query_fails_with_what_the_users_function_raised_and_takes_nothing_after(spark, tmp_path):
    def deliver(frame, batch):
        raise LookupError("no such customer")

    spark.range(3).write.parquet(str(tmp_path / "in"))
    counts = spark.readStream.schema("id long").parquet(str(tmp_path / "in")).groupBy("id").count()
    writer = hg.writeStream(counts).outputMode("update").foreachBatch(deliver)
    query = writer.option("checkpointLocation", str(tmp_path / "checkpoint")).start()
    with pytest.raises(StreamingQueryException) as caught:
        query.awaitTermination()
    assert str(caught.value) == "LookupError: no such customer (in test_life.py line 101)"
    assert "[STREAM_FAILED]" in str(caught.value.__cause__)
    assert query.exception() is caught.value
    end = json.loads(query.journal.read_text().splitlines()[-1])
    assert (end["event"], end["error"]) == ("stop", "LookupError in test_life.py line 101")
    for ask in (query.freeze, lambda: query.scale(3), lambda: query.remap({0: 1})):
        with pytest.raises(
            EngineError, match=r"has ended \(LookupError: no such customer \(in test_life"
        ):
            ask()
    query.stop()


@pytest.mark.thorough
def test_a_run_ends_with_one_sentence_when_the_jvm_is_killed(tmp_path: Path) -> None:
    checkpoint = tmp_path / "checkpoint"
    command = [sys.executable, "-m", "headgate.cli", "run", "nexmark-q5", "--rate", "100"]
    options = ["--duration", "1h", "--json", "--checkpoint", str(checkpoint)]
    with subprocess.Popen(
        [*command, *options], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as running:
        try:
            journal = checkpoint / "headgate" / "journal.jsonl"
            begun = threading.Event()
            while not begun.wait(0.2):
                assert running.poll() is None
                if journal.exists() and '"event":"batch"' in journal.read_text():
                    begun.set()
            (jvm,) = children(running.pid, "java")
            os.kill(jvm, signal.SIGKILL)
            out, err = running.communicate()
        finally:
            running.kill()
    assert running.returncode == 1
    said = json.loads(out)["error"]
    assert said["message"].startswith("Spark's JVM is gone")
    assert err.strip().splitlines()[-1] == f"headgate: {said['message']}"


def children(pid: int, name: str) -> list[int]:
    """Return the child processes of a process that run a program of that name."""
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            text = stat.read_text()
        except OSError:
            continue  # it ended meanwhile
        if int(text.rpartition(")")[2].split()[1]) == pid and f"({name})" in text:
            found.append(int(stat.parent.name))
    return found


# -- without Spark ----------------------------------------------------------------------------------


def life_at(port: int) -> JvmLife:
    parameters = SimpleNamespace(address="127.0.0.1", port=port)
    gateway = SimpleNamespace(gateway_parameters=parameters)
    return JvmLife(SimpleNamespace(sparkContext=SimpleNamespace(_gateway=gateway)))


@pytest.fixture
def listening():
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server


def test_an_error_of_the_network_means_that_the_jvm_is_gone_if_nobody_listens(listening):
    watched = life_at(listening.getsockname()[1])
    listening.close()
    with pytest.raises(EngineGone, match=SENTENCE) as caught, watched.asked():
        raise Py4JNetworkError("Answer from Java side is empty")
    assert isinstance(caught.value.__cause__, Py4JNetworkError)


def test_an_error_of_the_network_stays_what_it_is_while_the_jvm_lives(listening, monkeypatch):
    monkeypatch.setattr(life, "_GRACE_S", 0.0)
    watched = life_at(listening.getsockname()[1])
    with pytest.raises(Py4JNetworkError), watched.asked():
        raise Py4JNetworkError("Answer from Java side is empty")
    with pytest.raises(ValueError, match="own"), watched.asked():
        raise ValueError("own")


class Batches:
    def __init__(self, *, idle: bool = True) -> None:
        self.stopping, self.idle = threading.Event(), threading.Event()
        self.interrupted = threading.Event()
        self.failed = None
        self.is_of_this_thread = False
        self.cancelled: list[tuple[str, bool]] = []
        if idle:
            self.idle.set()

    def cancel(self, run: str, *, raising: bool) -> None:
        """Ends the batch once its code is raised from."""
        self.cancelled.append((run, raising))
        if raising:
            self.idle.set()


class Inner:
    """A query of Spark that ends with `error` once it is told to go."""

    runId = "run"

    @property
    def isActive(self) -> bool:
        return not self.go.is_set()

    def __init__(self, error: Exception | None) -> None:
        self.error, self.go = error, threading.Event()

    def awaitTermination(self) -> None:
        assert self.go.wait(60)
        if self.error is not None:
            raise self.error

    def stop(self) -> None:
        self.go.set()
        if isinstance(self.error, OSError):
            raise self.error


def test_a_stop_does_not_wait_for_a_batch_that_hangs_once_the_jvm_is_gone(listening, monkeypatch):
    monkeypatch.setattr("headgate.spark.api.ending._LAST_BATCH_S", 0.0)
    port = listening.getsockname()[1]
    listening.close()
    inner, batches, closed = Inner(ConnectionRefusedError()), Batches(idle=False), []
    end = Ending(inner, batches, life_at(port), rest=None, close=closed.append)
    end.start()
    inner.go.set()
    with pytest.raises(EngineGone, match=SENTENCE):
        end.stop()
    assert [type(failure) for failure in closed] == [EngineGone]


def test_a_batch_that_goes_on_is_broken_off_by_what_is_no_failure(listening, monkeypatch):
    for name, seconds in (("PATIENCE", 0.05), ("RAISES_AFTER", 0.1), ("AGAIN", 0.01)):
        monkeypatch.setattr(f"headgate.spark.api.ending._{name}_S", seconds)
    inner, batches, closed, calls = Inner(ValueError("cancelled")), Batches(idle=False), [], []
    ends = inner.awaitTermination
    # as Spark's thread, it is in the batch until that returns
    inner.awaitTermination = lambda: batches.idle.wait(60) and ends()
    life = life_at(listening.getsockname()[1])
    before = lambda: calls.append("before")  # noqa: E731
    end = Ending(inner, batches, life, rest=None, close=closed.append, before=before)
    end.start()
    end.stop()
    assert batches.interrupted.is_set()
    assert (closed, calls, end.failure) == ([None], [], None)
    raised = [raising for _, raising in batches.cancelled]
    assert raised[-1]
    assert raised == sorted(raised), "code is raised from when jobs were cancelled for a while"


@pytest.mark.parametrize("outside", [False, True])
def test_a_query_between_two_batches_stops_for_whoever_asks(listening, monkeypatch, outside):
    monkeypatch.setattr("headgate.spark.api.ending._LOOK_S", 0.01)
    inner, batches, calls = Inner(None), Batches(), []
    life = life_at(listening.getsockname()[1])
    end = Ending(
        inner,
        batches,
        life,
        rest=None,
        close=lambda failure: calls.append(("close", failure)),
        before=lambda: calls.append(("before", inner.isActive)),
        look=lambda: outside,
    )
    end.start()
    if not outside:
        batches.is_of_this_thread = True
        end.stop()  # in the query's own function it does not wait
        with pytest.raises(HeadgateError, match="own function waits for its query"):
            end.wait(60)
        batches.is_of_this_thread = False
    assert end.wait(60)
    assert batches.stopping.is_set()
    assert not batches.interrupted.is_set()
    assert calls == [("before", True), ("close", None)]


def test_those_who_wait_go_on_also_when_what_a_query_held_cannot_be_given_back(listening):
    def close(failure):
        raise OSError("the disk is full")

    inner = Inner(None)
    end = Ending(inner, Batches(), life_at(listening.getsockname()[1]), rest=None, close=close)
    end.start()
    assert not end.wait(0)
    end.refuse_if_over("scale")
    inner.go.set()
    with pytest.raises(OSError, match="full"):
        end.wait(60)
    with pytest.raises(
        HeadgateError, match=r"has ended \(OSError: the disk is full \(in test_life"
    ):
        end.refuse_if_over("scale")
