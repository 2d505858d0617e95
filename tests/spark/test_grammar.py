"""Whatever Spark lets through runs: generated queries answer as Spark does, while slots change."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import answers
import grammar_data
import pytest
from generated import generate
from grammar import Query
from grammar_forms import FORMS
from pyspark.errors import AnalysisException, StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from written import counted, final, shape

import headgate as hg
from headgate.core.errors import UnsupportedQuery

SEEDS = 2000
"""Queries of the thorough run."""

QUICK = ("aggregate", "duplicates", "join", "function", "chain")
"""Kinds of queries of which the short run has one; of the others `test_written` has some that it runs."""

QUICK_AMONG = 200
"""Queries among which those of the short run are chosen."""

REFUSED: dict[str, str] = {}
"""What is refused of the generated queries: words of the message, and why."""

_SETTINGS = {
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.shuffle.partitions": "2",
    # plain Spark's transformWithState needs it
    "spark.sql.streaming.stateStore.providerClass": (
        "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
    ),
}


@pytest.fixture(scope="module")
def session(spark: SparkSession) -> Iterator[SparkSession]:
    before = {name: spark.conf.get(name, None) for name in _SETTINGS}
    for name, value in _SETTINGS.items():
        spark.conf.set(name, value)
    yield spark
    for name, old in before.items():
        spark.conf.unset(name) if old is None else spark.conf.set(name, old)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("grammar")
    grammar_data.write(folder)
    return folder


Shape = list[tuple[str, str]]


def elastic(
    spark: SparkSession, folder: Path, query: Query, seed: int | str
) -> tuple[Counter[str], Shape]:
    """Return what headgate puts out, and its schema."""
    frame = query.build(grammar_data.Given(spark, folder))
    batches: list[list[Any]] = []
    shapes: list[Shape] = [shape(frame)]

    def keep(batch: DataFrame, batch_id: int) -> None:
        batches.append(batch.collect())
        shapes.append(shape(batch))

    made = hg.writeStream(frame).outputMode(query.mode).slots(start=2).keyGroups(16)
    made = made.trigger(availableNow=True)
    if query.sink == "memory":
        made = made.format("memory").queryName(f"grammar_{seed}")
    else:
        made = made.foreachBatch(keep)
    running = made.start()
    if running.assignment():
        answers.change_at_random(running, random.Random(str(seed)), key_groups=16)
    running.awaitTermination()
    if query.sink == "memory":
        table = spark.table(f"grammar_{seed}")
        batches, shapes = [table.collect()], [shape(table)]
        spark.catalog.dropTempView(f"grammar_{seed}")
    keys = [] if query.stream else query.keys
    return counted(spark, final(batches, query.mode, keys)), shapes[-1]


def expected(spark: SparkSession, folder: Path, query: Query) -> tuple[Counter[str], Shape]:
    """Return Spark's answer: of a batch, or of its own stream where only that says it."""
    if query.stream:
        rows: list[Any] = []
        frame = query.build(grammar_data.Given(spark, folder))

        def keep(batch: DataFrame, batch_id: int) -> None:
            if query.mode == "complete":
                rows.clear()
            rows.extend(batch.collect())

        made = frame.writeStream.outputMode(query.mode).foreachBatch(keep)
        made.trigger(availableNow=True).start().awaitTermination()
        return counted(spark, rows), shape(frame)
    last = query.mode != "append" or not query.due
    frame = query.build(grammar_data.Given(spark, folder, stream=False, last=last))
    return counted(spark, frame.collect()), shape(frame)


def outcome(spark: SparkSession, folder: Path, seed: int) -> str:
    """Return nothing where all is well, and what is wrong with a query otherwise."""
    return judged(spark, folder, generate(seed)[0], seed)


UNJUDGED = "UNJUDGED"


def _refusal(spark: SparkSession, folder: Path, query: Query) -> str:
    """Return what plain Spark says against a query; nothing where it runs."""
    try:
        expected(spark, folder, query)
    except AnalysisException as error:
        return str(error)
    return ""


def judged(spark: SparkSession, folder: Path, query: Query, seed: int | str) -> str:
    """Return the same of any query."""
    try:
        got, got_shape = elastic(spark, folder, query, seed)
    except UnsupportedQuery as error:
        if any(words in str(error) for words in REFUSED):
            return ""
        return f"REFUSED {query.text}\n    {error}"
    except Exception as error:
        failure = f"FAILED {query.text}\n    {type(error).__name__}: {str(error)[:600]}"
        refused = isinstance(error, AnalysisException) and _refusal(spark, folder, query)
        return f"{UNJUDGED} {query.text}\n    {refused}" if refused == str(error) else failure
    try:
        wanted, wanted_shape = expected(spark, folder, query)
    except (AnalysisException, StreamingQueryException) as error:
        # plain Spark refuses it, or fails
        return f"{UNJUDGED} {query.text}\n    {str(error)[:300]}"
    if got != wanted:
        missing, extra = wanted - got, got - wanted
        return (
            f"WRONG {query.text}\n    missing {missing.total()} {list(missing)[:2]}\n"
            f"    extra {extra.total()} {list(extra)[:2]}"
        )
    if got_shape != wanted_shape:
        return f"SCHEMA {query.text}\n    {got_shape}\n    wanted {wanted_shape}"
    return ""


ALTERNATIVES = 220
"""So many the grammar has at least; the last count was 240."""


def test_every_alternative_of_the_grammar_is_drawn() -> None:
    drawn = [generate(seed)[1] for seed in range(SEEDS // 2)]
    offered = set().union(*(draw.offered for draw in drawn))
    assert not offered - {name for draw in drawn for name in draw.used}
    assert len(offered) > ALTERNATIVES


def short() -> list[int]:
    """Return the seeds of the short run: of each kind of query the one that brings most that is new."""
    drawn = {seed: set(generate(seed)[1].used) for seed in range(QUICK_AMONG)}
    known: set[str] = set()
    chosen = []
    for core in QUICK:
        seeds = [seed for seed, used in drawn.items() if f"core: {core}" in used]
        chosen.append(max(seeds, key=lambda seed: len(drawn[seed] - known)))
        known |= drawn[chosen[-1]]
    return chosen


def test_generated_queries_answer_as_spark_does(session: SparkSession, folder: Path) -> None:
    found = [outcome(session, folder, seed) for seed in short()]
    assert not list(filter(None, found)), "\n\n".join(filter(None, found))


@pytest.mark.thorough
@pytest.mark.parametrize("seed", range(SEEDS))
def test_any_generated_query_answers_as_spark_does(
    session: SparkSession, folder: Path, seed: int
) -> None:
    found = outcome(session, folder, seed)
    if found.startswith(UNJUDGED):
        pytest.skip(found)
    assert not found, found


BRIEF = ("groups by a collation", "a number on its own side", "subtract a table")
"""Forms of the short run: nothing else in it takes their ways."""


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=[] if n in BRIEF else [pytest.mark.thorough]) for n in FORMS]
)
def test_a_form_that_people_write_answers_as_spark_does(
    session: SparkSession, folder: Path, name: str
) -> None:
    query = FORMS[name]
    found = judged(session, folder, replace(query, text=f"{query.mode}: {name}"), name)
    assert not found, found
