"""Describes the failures of Spark's Kafka source, with a remedy, in one sentence."""

from __future__ import annotations

import re
from collections.abc import Sequence

_LOST = re.compile(
    r"Some data may have been lost because they are not available in Kafka any more.*?"
    r"Reason:\s*(?P<why>[^\n]*)",
    re.DOTALL,
)
_STARTING = re.compile(
    r"If startingOffsets contains specific offsets, you must specify all TopicPartitions.*?"
    r"Specified: Set\((?P<given>[^)]*)\) Assigned: Set\((?P<there>[^)]*)\)",
    re.DOTALL,
)
_CLIENT = re.compile(r"org\.apache\.kafka\.common\.errors\.(?P<name>\w+)Exception: (?P<why>[^\n]*)")
_SLOW = re.compile(r"(?P<why>Cannot fetch record (?:for )?offset \d+ in \d+ milliseconds)")
_READS = re.compile(r"(?:Subscribe|SubscribePattern|Assign)\[[^\]]*\]")

_STATE = re.compile(r"\s*SQLSTATE: \w+\s*$")

_GOES_ON = "start the query again: it goes on where it was"


def kafka_failure(text: str, reads: Sequence[str]) -> str | None:
    """Return one sentence about Kafka from a text of the JVM; None if it is about something else.

    `text`: the whole text, with stack and causes. `reads`: descriptions of the query's Kafka sources.
    """
    if match := _LOST.search(text):
        why = _plain(match["why"])
        return (
            f"Kafka has records no more that this query was to read ({why}); bring them back, "
            'or go on without them by .option("failOnDataLoss", "false") of the reader.'
        )
    if match := _STARTING.search(text):
        return (
            f"option startingOffsets names partitions {match['given']}, and the topics have "
            f"{match['there'] or 'none'}; name each of these, -2 for its beginning, -1 for its end."
        )
    match = _CLIENT.search(text) or _SLOW.search(text)
    if match is None:
        return None
    name, why = match.groupdict().get("name", "Timeout"), _plain(match["why"])
    read = "; ".join(reads) or getattr(_READS.search(text), "group", str)()
    also = f"{why}; it reads {read}" if read else why
    if name == "UnknownTopicOrPartition":
        return f"Kafka has no such topic as this query names ({also}); make it, and {_GOES_ON}."
    if name == "Timeout":
        return f"Kafka did not answer in time ({also}); see that its brokers run, and {_GOES_ON}."
    return f"Kafka refused this query ({name}: {also}); see to that, and {_GOES_ON}."


def _plain(why: str) -> str:
    """Return a reason without SQLSTATE and full stop, to stand inside a sentence."""
    return _STATE.sub("", why).strip().rstrip(".")
