"""What headgate reads out of queries, as recorded: operators, routed columns, plans and meaning.

No query runs, so that dozens take seconds. They are drawn by the grammar of `test_grammar`, which also
sees that such queries answer rightly; here a change of what is read is seen wherever it is.
"""

from __future__ import annotations

import json
import re
import zlib
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import grammar_data
import pyspark
import pytest
from generated import generate
from pyspark.sql import SparkSession

from headgate.spark.read.logical import read, shown
from headgate.spark.read.meaning import meaning
from headgate.spark.read.plan import PlannedOperator, Routed

AMONG, QUERIES = 300, 32
"""How many are drawn, and how many of them are kept: each time the one with most that is new."""
WIDTH = 120
"""Characters of a line that are kept; of the rest there is a digest, since plans are long."""
MINOR = "4.3"
"""Plans read otherwise in other minor releases of Spark."""

Recorded = Callable[[str, Iterable[str]], None]

pytestmark = pytest.mark.skipif(
    not pyspark.__version__.startswith(MINOR), reason=f"recorded with Spark {MINOR}"
)


@pytest.fixture
def session(spark: SparkSession) -> Iterator[SparkSession]:
    before = spark.conf.get("spark.sql.session.timeZone")
    spark.conf.set("spark.sql.session.timeZone", "UTC")
    yield spark
    spark.conf.set("spark.sql.session.timeZone", before or "UTC")


def seeds() -> list[int]:
    """Return the seeds of queries that together have most of what the grammar offers."""
    drawn = {seed: set(generate(seed)[1].used) for seed in range(AMONG)}
    known: set[str] = set()
    chosen = []
    for _ in range(QUERIES):
        best = max(drawn, key=lambda seed: (len(drawn[seed] - known), -seed))
        chosen.append(best)
        known |= drawn.pop(best)
    return chosen


class Names:
    """Gives ids that differ from run to run a number each, in the order in which they come."""

    def __init__(self, folder: Path) -> None:
        self._folder = str(folder)
        self._numbers: dict[str, int] = {}

    def plain(self, text: object) -> str:
        """Return a text without what another run would say otherwise."""
        said = str(text).replace(self._folder, "DIR")
        said = re.sub(r" at 0x[0-9a-f]+|(?<=;)@[0-9a-f]+", "", said)
        said = re.sub(r"\b[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}\b", self._number, said)
        # Spark numbers the frames of a session
        said = re.sub(r"(CollectMetrics .*\], )\d+$", r"\1N", said)
        said = re.sub(r"(?<=#)\d+|(?<=\b[xyz]_)\d+", self._number, said).rstrip()
        rest = said[WIDTH:]
        return said[:WIDTH] + (f" + {zlib.crc32(rest.encode()):08x}" if rest else "")

    def _number(self, match: re.Match[str]) -> str:
        name = match.string[: match.start()][-1:] + match.group()
        return str(self._numbers.setdefault(name, len(self._numbers)))


def of_operator(op: PlannedOperator) -> Iterator[str]:
    """Yield all that was read of an operator, a line each."""
    yield f"{op.id}: {op.what}"
    feeds = [feed.id for feed in op.feeds]
    yield f"level {op.level}, over {op.upstream and op.upstream.id}, feeds {feeds}, {op.columns}"
    yield f"delays {op.delays_us}, behind {op.behind_us}, time {op.time_output}, {op.key_names}"
    yield from repr(op.spec).splitlines()
    for column in (
        *op.keys,
        *op.values,
        *(op.initial.keys + op.initial.values if op.initial else ()),
    ):
        leaf = column.leaf if isinstance(column, Routed) else "passed"
        yield f"{column.name} {leaf}: {column.value}"
    yield f"slice {op.slice_start}, arrival {op.arrival}"
    if op.aggregate is not None:
        yield f"{op.aggregate.spans}, {op.aggregate.advance_us}, {op.aggregate.keeps_start}"
    for side in op.join:
        yield f"{side.spans}, {[at for at, _ in side.compared]}, {[str(k) for k in side.keys]}"
    yield op.raw_schema.simpleString()
    for plan in (op.input_plan, op.output_plan):
        yield from str(plan.toString()).splitlines()


def of_query(spark: SparkSession, folder: Path, seed: int) -> Iterator[str]:
    """Yield all that is read of a query, a line each."""
    query, _ = generate(seed)
    frame = query.build(grammar_data.Given(spark, folder))
    yield f"== {query.text}"
    yield from shown(frame, query.mode)
    found = read(frame, query.mode)
    for operator in found.operators:
        yield from of_operator(operator)
    yield f"{found.mode.name}, {found.notes}, {found.schema.simpleString()}"
    yield from str(found.plan.toString()).splitlines()
    yield json.dumps(meaning(spark, found.operators), sort_keys=True)


def test_what_is_read_of_queries(session: SparkSession, tmp_path: Path, recorded: Recorded) -> None:
    grammar_data.write(tmp_path)
    names = Names(tmp_path)
    lines = [names.plain(line) for seed in seeds() for line in of_query(session, tmp_path, seed)]
    recorded("read", lines)
