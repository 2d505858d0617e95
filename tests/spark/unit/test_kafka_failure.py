"""What Spark says of Kafka, in one sentence that says what to do; without Spark."""

from __future__ import annotations

import pytest
from pyspark.errors import StreamingQueryException

from headgate.spark.worker.failure import QueryFailed, told

SPARK = "[STREAM_FAILED] Query [id = a, runId = b] terminated with exception: "
READER = (
    "\n=== Streaming Query ===\nIdentifier: [id = a]\nOffsets: {KafkaV2[Subscribe[clicks]]: {}}"
)
CLIENT = "java.util.concurrent.ExecutionException: org.apache.kafka.common.errors."

LOST = """Some data may have been lost because they are not available in Kafka any more;
either the data was aged out by Kafka or the topic may have been deleted before all the data in the
topic was processed.
If you don't want your streaming query to fail on such cases, set failOnDataLoss to false.
Reason: Partitions clicks-0 have been deleted. SQLSTATE: 22000"""

SPECIFIC = """java.lang.AssertionError: assertion failed: If startingOffsets contains specific offsets, \
you must specify all TopicPartitions.
Use -1 for latest, -2 for earliest, if you don't care.
Specified: Set(clicks-0) Assigned: Set(clicks-1, clicks-0)"""


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        (
            SPARK + LOST + READER,
            "Kafka has records no more that this query was to read (Partitions clicks-0 have been "
            "deleted); bring them back, or go on without them by "
            '.option("failOnDataLoss", "false") of the reader.',
        ),
        (
            SPARK + CLIENT + "UnknownTopicOrPartitionException: This server does not." + READER,
            "Kafka has no such topic as this query names (This server does not; it reads "
            "Subscribe[clicks]); make it, and start the query again: it goes on where it was.",
        ),
        (
            SPARK + CLIENT + "TimeoutException: Timed out waiting for a node assignment.\n\tat x",
            "Kafka did not answer in time (Timed out waiting for a node assignment); see that "
            "its brokers run, and start the query again: it goes on where it was.",
        ),
        (
            "java.util.concurrent.TimeoutException: Cannot fetch record for offset 7 in 9 milliseconds",
            "Kafka did not answer in time (Cannot fetch record for offset 7 in 9 "
            "milliseconds); see that its brokers run, and start the query again: it goes on where it "
            "was.",
        ),
        (
            CLIENT + "TopicAuthorizationException: Not authorized to access topics: [clicks]",
            "Kafka refused this query (TopicAuthorization: Not authorized to access topics: [clicks]); "
            "see to that, and start the query again: it goes on where it was.",
        ),
        (
            SPARK + SPECIFIC,
            "option startingOffsets names partitions clicks-0, and the topics have clicks-1, clicks-0; "
            "name each of these, -2 for its beginning, -1 for its end.",
        ),
    ],
)
def test_what_sparks_reader_of_kafka_says_is_one_sentence(text: str, sentence: str) -> None:
    assert told(StreamingQueryException(text)) == sentence


def test_it_says_what_the_query_reads_where_that_is_known() -> None:
    error = StreamingQueryException(SPARK + CLIENT + "TimeoutException: too long." + READER)
    failed = QueryFailed.of(error, None, ["subscribe=clicks at here:9092", "assign=x at there:1"])
    assert "(too long; it reads subscribe=clicks at here:9092; assign=x at there:1)" in str(failed)


def test_what_is_not_of_kafka_stays_what_it_is() -> None:
    assert told(StreamingQueryException(SPARK + "no disk" + READER)) == "no disk"
    assert told(ValueError(CLIENT + "AnyException: x")).startswith("ValueError: ")
