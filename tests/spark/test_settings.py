"""A setting that makes no sense is refused when it is set, in one sentence with the remedy."""

from __future__ import annotations

import dataclasses
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

import headgate as hg
from headgate.core.errors import ConfigError, HeadgateError
from headgate.spark.settings import options as own


def rate(spark: SparkSession) -> DataFrame:
    frame = spark.readStream.format("rate").option("rowsPerSecond", 5).load()
    return frame.withWatermark("timestamp", "5 seconds")


def by_key(frame: DataFrame) -> DataFrame:
    return frame.groupBy((F.col("value") % 7).alias("k")).agg(F.count("*").alias("n"))


def writer(frame: DataFrame, checkpoint: Path) -> Any:
    made = hg.writeStream(frame).format("memory").queryName("settings").outputMode("complete")
    return made.option("checkpointLocation", str(checkpoint)).slots(start=2)


def is_one_sentence(message: str) -> bool:
    return "\n" not in message and 20 < len(message) < 500


SETTINGS: dict[str, tuple[Callable[[Any], Any], str]] = {
    "continuous": (lambda w: w.trigger(continuous="1 second"), "continuous.*use processingTime"),
    "real time, and another": (
        lambda w: w.trigger(realTime="1 second", availableNow=True),
        "two kinds",
    ),
    "real time in no words of Spark's": (
        lambda w: w.trigger(realTime="soon"),
        'realTime="soon" is not allowed',
    ),
    "no trigger": (lambda w: w.trigger(), "processingTime=..., availableNow=True or once=True"),
    "unknown option": (
        lambda w: w.option("headgate.preagregate", "on"),
        'did you mean "headgate.preaggregate"',
    ),
    "mode": (lambda w: w.outputMode("updat"), 'did you mean "update"'),
    "no slots": (lambda w: w.slots(start=0), "slots start=0 is out of range"),
    "no slots at least": (lambda w: w.slots(min=0), "slots min=0"),
    "slots in words": (lambda w: w.slots("x"), "slots min='x' is out of range; use a whole"),
    "slots of half": (lambda w: w.slots(max=2.5), 'slots max=2.5 .* or "auto"'),
    "slots of truth": (lambda w: w.slots(start=True), "slots start=True"),
    "key groups in words": (lambda w: w.keyGroups("8"), "keyGroups='8' .* whole number"),
    "bare budget": (lambda w: w.budget(5), "budget=5 is not allowed; .*800 ms"),
    "bare slo": (lambda w: w.slo(5), "slo=5 is not allowed; .*mean < 1 s over 1 s"),
    "bare migration": (lambda w: w.migration(3), "migration=3 is not allowed; .*subscale"),
    "no name": (lambda w: w.queryName(None), "query name=None is not allowed"),
    "no function": (lambda w: w.foreachBatch(None), "foreachBatch=None is not allowed"),
    "no format": (lambda w: w.format(None), "format=None is not allowed"),
    "mode of a number": (lambda w: w.outputMode(1), "output mode=1 is not allowed; use append"),
    "columns of a number": (lambda w: w.partitionBy("a", 1), "partitionBy=1 is not allowed"),
    "option of a number": (lambda w: w.option(1, "x"), "option name=1 is not allowed"),
    "two triggers": (
        lambda w: w.trigger(processingTime="1 second", availableNow=True),
        "two kinds; use processingTime=... or availableNow",
    ),
    "interval": (
        lambda w: w.trigger(processingTime="500 ms"),
        'processingTime="500 ms" is not allowed; .*500 milliseconds',
    ),
    "advice": (lambda w: w.advise("yes"), "advise='yes' is not allowed; use True or False"),
    "policy of a number": (lambda w: w.policy(3), "policy=3 is not allowed; .*streamswitch"),
    "policy parameter in words": (
        lambda w: w.policy("streamswitch", epsilon="x"),
        "policy parameter epsilon='x' is not allowed; use a number",
    ),
    "a policy's parameter": (
        lambda w: w.policy(types.SimpleNamespace(decide=print), epsilon=1),
        "epsilon goes with a policy's name only",
    ),
    "arrival of no column": (
        lambda w: w.option("headgate.arrival", "tmiestamp").start(),
        'headgate.arrival="tmiestamp" .* did you mean "timestamp"',
    ),
    "arrival that is no time": (
        lambda w: w.option("headgate.arrival", "value").start(),
        'headgate.arrival="value" is a bigint; .*timestamp',
    ),
    "more slots than groups": (
        lambda w: w.keyGroups(8).slots(max=9).start(),
        "slots max=9 exceeds the 8 key groups",
    ),
    "first above max": (lambda w: w.slots(start=5, max=4).start(), "start=5, max=4"),
    "no key groups": (lambda w: w.keyGroups(0), "keyGroups=0 is out of range"),
    "budget without unit": (lambda w: w.budget("800"), "800"),
    "release": (lambda w: w.release("late"), 'use "committed" or "early"'),
    "fallback": (lambda w: w.fallback("flink"), 'use "error", "micro-batch" or "spark"'),
}


@pytest.mark.parametrize("name", SETTINGS)
def test_a_setting_that_makes_no_sense_is_named_with_the_remedy(
    spark: SparkSession, tmp_path: Path, name: str
) -> None:
    do, words = SETTINGS[name]
    made = writer(by_key(rate(spark)), tmp_path / "checkpoint")
    with pytest.raises(HeadgateError, match=words) as raised:
        do(made)
    assert is_one_sentence(str(raised.value)), str(raised.value)
    assert not (tmp_path / "checkpoint").exists()


OPTION_VALUES = {
    "headgate.arrival": [" "],
    "headgate.ordered": [" ", "ts,", ",ts"],
    "headgate.snapshotEvery": [0, "x", 2.5],
    "headgate.state.memoryMax": [0, "-1 MB", "500 MBs", "much"],
    "headgate.preaggregate": ["maybe"],
    "headgate.attempts": [0, -1, "four", True],
    "headgate.windows": ["half", 1],
    "headgate.keepLate": ["yes", 1],
    "headgate.showKeys": ["yes", 1],
    "headgate.journal.errorText": ["yes", 1],
    "headgate.metrics": ["here", "127.0.0.1", "127.0.0.1:70000", ":9095"],
    "headgate.workload": [""],
    "headgate.processorTimeLimit": [30, "0 s", "1e400 s"],
    "headgate.backlog.bytesMax": [0, "-1", "many", "3 parsecs"],
    "headgate.backlog.ageMax": ["60", "-1 s"],
    "headgate.replicas.interval": [5],
    "headgate.replicas.restart": ["never"],
    "headgate.replicas.timeout": ["30", "0 s"],
    "headgate.replicas.queueMax": [0, -1, "some"],
    "headgate.grouping": ["by key", "shuffle, shuffle", "map-0: shuffle, map-0: shuffle"],
    "headgate.delivery": ["at-most-once"],
    "headgate.executors": ["lead"],
    "headgate.slotRate": [0, "nan", "inf", "fast"],
    "headgate.floor": ["low", 1],
    "headgate.experimental.realTime": ["yes", 1],
    "headgate.epoch": ["50", "0 s"],
    "headgate.release": ["late", 1],
}


@pytest.mark.parametrize("key", own.OPTIONS)
def test_an_option_that_may_not_be_that_is_refused_when_it_is_set(key: str) -> None:
    for value in OPTION_VALUES[key]:
        with pytest.raises(ConfigError) as raised:
            own.check_option(key, value)
        said = str(raised.value)
        text = str(value).lower() if isinstance(value, bool) else str(value)
        assert said == f'{key}="{text}" is not allowed; use {own.OPTIONS[key].allowed}.'


def test_a_grouping_that_is_not_known_is_refused_with_the_nearest() -> None:
    for text in ("lest-work", "shuffle, map-1: lest-work"):
        with pytest.raises(ConfigError, match=r'is not allowed; use .*; did you mean "least-work"'):
            own.check_option("headgate.grouping", text)


def test_the_writer_takes_options_in_any_case_and_as_what_they_are(spark: SparkSession) -> None:
    made = hg.writeStream(rate(spark)).option("HEADGATE.keeplate", True)
    made = made.options(**{"headgate.attempts": 7, "headgate.backlog.bytesMax": "1 MiB"})
    assert own.KEEP_LATE.of(made.settings.options) is True
    assert own.ATTEMPTS.of(made.settings.options) == 7
    assert own.BACKLOG_BYTES_MAX.of(made.settings.options) == 2**20
    assert own.ATTEMPTS.of(made.option("headgate.attempts", None).settings.options) == 4
    with pytest.raises(ConfigError, match=r'headgate.attempts="0" is not allowed; use a whole'):
        made.option("headgate.attempts", 0)


def test_settings_that_somebody_holds_are_not_changed_by_the_writers_next_methods(
    spark: SparkSession,
) -> None:
    made = hg.writeStream(rate(spark)).queryName("a").option("path", "first").slots(start=2)
    held = made.settings
    again = made.queryName("b").option("path", "second").slots(start=3).trigger(availableNow=True)
    assert again is made
    assert (held.name, held.options, held.slots.start) == ("a", {"path": "first"}, 2)
    assert not held.trigger
    now = made.settings
    assert (now.name, now.options, now.slots.start) == ("b", {"path": "second"}, 3)
    with pytest.raises(dataclasses.FrozenInstanceError):
        now.name = "c"  # type: ignore[misc]
