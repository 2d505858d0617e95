"""What is said of a slot that failed; without Spark."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from headgate.core.errors import EngineError, ProcessorError
from headgate.engines.spark.failure import is_final, is_lost_worker, located

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
