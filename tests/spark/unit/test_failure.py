"""What is said of a slot that failed; without Spark."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from py4j.protocol import Py4JError, Py4JJavaError, Py4JNetworkError
from pyspark.errors import PySparkException, StreamingQueryException

from headgate.core.errors import CheckpointError, EngineError, ProcessorError
from headgate.spark.realtime.run_slots import PipeLost
from headgate.spark.step.losses import Losses
from headgate.spark.worker import failure as failure_module
from headgate.spark.worker.failure import (
    QueryFailed,
    is_final,
    is_lost_worker,
    located,
    processor_error,
    says,
    told,
)

HALF = 2**30
"""Half of what the offsets of Arrow's text reach."""


def claiming(kind: pa.DataType, size: int) -> pa.Array:
    """Return one text of `size` bytes that nobody has touched, so that they take no memory."""
    wide = pa.types.is_large_binary(kind)
    offsets = np.array([0, size], dtype=np.int64 if wide else np.int32)
    return pa.Array.from_buffers(
        kind, 1, [None, pa.py_buffer(offsets), pa.py_buffer(np.zeros(size, dtype=np.uint8))]
    )


def put_together() -> None:
    pa.concat_arrays([claiming(pa.binary(), HALF)] * 2)


def put_out() -> None:
    claiming(pa.large_binary(), 2 * HALF).cast(pa.binary())


@pytest.mark.parametrize("work", [put_together, put_out])
def test_too_much_text_is_refused_with_its_place_and_a_remedy_and_not_tried_again(work):
    with pytest.raises(EngineError, match=r"slot 3, step 7: .* more than 2 GB") as caught:
        with located("aggregate-0, slot 3, step 7"):
            work()
    # the driver gets what a worker raises as text
    assert is_final(RuntimeError(str(caught.value)))


def test_another_error_of_arrow_stays_what_it_is():
    with pytest.raises(pa.ArrowInvalid, match="Failed to parse"), located("aggregate-0"):
        pa.array(["x"]).cast(pa.int64())


def test_a_users_error_says_where():
    with pytest.raises(ProcessorError, match="processor-0: it failed"), located("processor-0"):
        raise ProcessorError("it failed")


IN_A_WORKER = """An error occurred while calling o385.count.
: org.apache.spark.SparkException: Job aborted due to stage failure: Task 0 in stage 5.0 failed 1 times, \
most recent failure: Lost task 0.0 in stage 5.0 (TID 7) (host-1 executor driver): \
org.apache.spark.api.python.PythonException: Traceback (most recent call last):
  File "/x/pyspark.zip/pyspark/worker.py", line 1247, in main
    process()
  File "my_functions.py", line 3, in parsed
    raise BadLine(f"line {number}")
my_functions.BadLine: line 7

\tat org.apache.spark.api.python.BasePythonRunner.handlePythonException(PythonRunner.scala:572)
Caused by: org.apache.spark.api.python.PythonException: Traceback (most recent call last):
  File "/x/pyspark.zip/pyspark/worker.py", line 1247, in main
my_functions.BadLine: line 7
\t... 1 more
"""
LATE = """An error occurred while calling o385.count.
: org.apache.spark.SparkException: Job aborted due to stage failure: Task 0 in stage 5.0 failed 1 times, \
most recent failure: Lost task 0.0 in stage 5.0 (TID 7) (host-1 executor 3): \
org.apache.spark.SparkException: Python worker failed to connect back.
\tat org.apache.spark.api.python.PythonWorkerFactory.createSimpleWorker(PythonWorkerFactory.scala:1)
Caused by: java.net.SocketTimeoutException: Accept timed out
"""
STREAM = "[STREAM_FAILED] Query [id = 1, runId = 2] terminated with exception: "
FROM_OURS = (
    "Traceback (most recent call last):\n  File x\nheadgate.core.errors.ProcessorError: it ends."
)


@pytest.mark.parametrize(
    ("error", "sentence"),
    [
        (ValueError("the column is gone"), "ValueError: the column is gone"),
        (KeyError("x"), "KeyError: 'x'"),
        (CheckpointError("it is held by another driver."), "it is held by another driver."),
        (PySparkException(IN_A_WORKER), "BadLine: line 7"),
        (Py4JError(LATE), "SparkException: Python worker failed to connect back."),
        (PySparkException(STREAM + "The disk is full. SQLSTATE: XXKST"), "The disk is full."),
        (PySparkException(STREAM + FROM_OURS), "it ends."),
    ],
)
def test_a_failure_is_told_in_one_line_without_sparks_layers(error, sentence):
    assert told(error) == sentence


def test_a_failed_query_says_what_its_batch_raised_and_keeps_what_spark_says():
    raised = ValueError("the users own")
    spark = StreamingQueryException("layers of Java", errorClass="STREAM_FAILED")
    failure = QueryFailed.of(spark, raised)
    assert str(failure) == "ValueError: the users own"
    assert isinstance(failure, StreamingQueryException)
    assert isinstance(failure, EngineError)
    assert (failure.__cause__, spark.__cause__) == (spark, raised)
    assert failure.getCondition() == failure.getErrorClass() == "STREAM_FAILED"
    assert failure.getSqlState() == spark.getSqlState()
    assert says(failure, "layers of Java")
    assert not says(failure, "something else")


@pytest.mark.parametrize(
    ("raised", "is_users"),
    [
        (ValueError("the users own"), True),
        (ProcessorError("it ends."), True),
        (CheckpointError("it is held by another driver."), False),
        (PySparkException(IN_A_WORKER), True),
        (PySparkException(STREAM + "The disk is full."), False),
    ],
)
def test_of_a_users_error_only_the_users_part_of_the_way_is_kept(monkeypatch, raised, is_users):
    monkeypatch.setattr(failure_module, "users_part", lambda trace: None)
    try:
        raise raised
    except Exception as error:
        QueryFailed.of(StreamingQueryException("layers of Java"), error)
    assert (raised.__traceback__ is None) == is_users


def test_a_batch_is_not_tried_again_where_no_jvm_answers():
    assert is_final(Py4JNetworkError("Answer from Java side is empty"))
    assert is_final(ConnectionRefusedError())
    assert not is_final(OSError("the disk is full"))


@pytest.mark.parametrize(
    "said",
    [
        "org.apache.spark.SparkException: Python worker failed to connect back.",
        "Timed out while waiting for the Python worker to connect back",
        "Python worker exited unexpectedly (crashed)",
        "EOFException occurred while reading the port number from headgate's stdout",
        "java.io.EOFException\n at java.base/java.io.DataInputStream.readInt",
    ],
)
def test_a_worker_that_did_not_start_or_died_is_worth_another_attempt(said):
    assert is_lost_worker(RuntimeError(said))
    assert not is_final(RuntimeError(said))


@pytest.mark.parametrize(
    "said", ["[DIVIDE_BY_ZERO] Division by zero", "ValueError: Python worker, says the user"]
)
def test_what_a_users_query_does_is_no_lost_worker(said):
    assert not is_lost_worker(RuntimeError(said))


def test_a_full_disk_of_sparks_is_told_with_what_to_do() -> None:
    said = told(PySparkException("java.io.IOException: No space left on device"))
    assert said.startswith("IOException: No space left on device; make room where Spark writes")
    assert "\n" not in said


class Trace:
    """An error in the JVM, which counts how often somebody asks for its text."""

    _target_id = "o1"

    def __init__(self) -> None:
        self.asked = 0
        self._gateway_client = self

    def send_command(self, command: str) -> str:
        self.asked += 1
        return (
            "ysorg.apache.spark.SparkException: Lost task 0.0 in stage 7.0: Python worker is idle"
        )


def test_the_jvm_is_asked_once_for_the_text_of_an_error() -> None:
    """A dozen times at 44 ms were half of a second, for which a query put out nothing."""
    trace = Trace()
    error = Py4JJavaError("An error occurred while calling o1.collect", trace)
    assert processor_error(error) is None
    assert not is_final(error)
    assert is_lost_worker(error)
    assert told(error) == told(error, withhold=True)
    assert says(error, "is idle")
    assert str(PipeLost.of(error)).endswith("Python worker is idle")
    assert trace.asked == 1
    losses = Losses(frozenset, lambda _: [7])
    assert losses.in_attempt(error, [{"first": 1}], []) == [("first", 0)]
    assert trace.asked == 1
