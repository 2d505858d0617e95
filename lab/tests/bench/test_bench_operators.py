"""Operators side by side: input, exact answers and judgement; no time is looked at."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from headgate.core.errors import ConfigError, EngineError
from headgate_lab.bench import flink, flink_words, joins, memory, processor, sides, windows, words
from headgate_lab.bench.common import WrongAnswer, descendants
from headgate_lab.experiments import operators
from headgate_lab.experiments.stretch import counts, scalejoin
from headgate_lab.workloads.tweets import TWEETS, tweets

pytestmark = pytest.mark.spark


def rows(**columns: list[int]) -> dict[str, np.ndarray]:
    return {name: np.array(values, dtype=np.int64) for name, values in columns.items()}


def entry(engine: str, case: str, rate: float) -> dict:
    return {"engine": engine, "case": case, "rows_per_s": {"median": rate}}


# -- answers --------------------------------------------------------------------------------------


def test_rows_are_compared_in_any_order() -> None:
    exact = rows(k=[1, 2, 2], c=[5, 6, 7])
    assert sides.check("me", exact, rows(c=[7, 5, 6], k=[2, 1, 2])) == 3


@pytest.mark.parametrize(
    "got",
    [rows(k=[1, 2], c=[5, 6]), rows(k=[1, 2, 2], c=[5, 6, 8]), rows(k=[1, 1, 2], c=[5, 6, 7])],
)
def test_a_missing_row_a_wrong_value_and_a_wrong_key_are_wrong_answers(got: dict) -> None:
    with pytest.raises(WrongAnswer, match="me"):
        sides.check("me", rows(k=[1, 2, 2], c=[5, 6, 7]), got)


def test_in_update_mode_the_last_row_of_a_key_counts() -> None:
    got = sides.last_rows(rows(key=[4, 9, 4], c=[1, 2, 3]), "key")
    assert {name: values.tolist() for name, values in got.items()} == {"key": [4, 9], "c": [3, 2]}


@pytest.mark.parametrize("advance_s", [1, windows.OVERLAP])
def test_the_exact_answer_of_windows_is_that_of_a_dictionary(advance_s: int) -> None:
    data = windows.TimedInput(rows=40, batches=3, seconds=10, keys=3, seed=1)
    found: Counter = Counter()
    for index in range(data.batches):
        for time_us, key, value in zip(*(c.tolist() for c in data.batch(index)), strict=True):
            second = time_us // 1_000_000
            last = second // advance_s * advance_s
            for start in range(last, second - windows.OVERLAP, -advance_s):
                found[start * 1_000_000, key, "c"] += 1
                found[start * 1_000_000, key, "s"] += value
    latest_us = int(data.batch(2)[0].max())
    answer = data.answer(advance_s)
    got = {
        (start, key, name): value
        for name in ("c", "s")
        for start, key, value in zip(
            answer["start"].tolist(), answer["k"].tolist(), answer[name].tolist(), strict=True
        )
    }
    closed = windows.OVERLAP * 1_000_000
    assert got == {at: value for at, value in found.items() if at[0] + closed <= latest_us}


def test_the_exact_answer_of_the_join_is_that_of_a_nested_loop() -> None:
    data = joins.TwoStreams(rows=20, batches=2, seconds=10, keys=3, seed=1)
    (left_us, left_keys), (right_us, right_keys) = data.side(0), data.side(1)
    pairs = [
        (i, j)
        for i in range(40)
        for j in range(40)
        if left_keys[i] == right_keys[j] and abs(left_us[i] - right_us[j]) <= joins.BAND_S * 1e6
    ]
    answer = data.answer()
    assert sorted(zip(answer["left_id"], answer["right_id"], strict=True)) == pairs
    assert left_us.min() > 0


def test_the_exact_counts_of_pairs_are_those_of_plain_python() -> None:
    expected: Counter = Counter()
    for number in range(5):
        tweet = [word for word in tweets()[number].tolist() if word >= 0]
        for i, word in enumerate(tweet):
            expected.update(word * words.VOCABULARY + other for other in tweet[i + 1 : i + 4])
    answer = words.answer(5, 3)
    assert dict(zip(answer["key"].tolist(), answer["c"].tolist(), strict=True)) == expected
    assert words.answer(2 * TWEETS, 0)["c"].tolist() == (2 * words.answer(TWEETS, 0)["c"]).tolist()


@pytest.mark.thorough
def test_headgate_gives_the_exact_answer_of_both_kinds_of_windows() -> None:
    result = windows.run(rows_per_batch=500, window_keys=10, batches=2, engines="headgate", slots=1)
    assert result["failed"] == []
    assert [e["case"] for e in result["engines"]] == ["tumbling", "sliding"]
    (judged,) = result["overlap"]
    assert judged["at_most"] == windows.TARGET


# -- Flink ----------------------------------------------------------------------------------------


def on_flink(directory: Path, *cases: str) -> list[dict]:
    return flink_words.compare(cases, directory, rows=20, slots=1, timeout_s=300)


@pytest.fixture
def fake_flink(monkeypatch):
    """Return what to call with a function from (job, name of a query) to what Flink says of it."""
    monkeypatch.setattr(flink, "find_flink", lambda: ("python", "2.3.0"))

    def answers(said) -> None:
        def measured(python, name, job, timeout_s):
            return {case: said(job, case) for case in job.selects}

        monkeypatch.setattr(flink, "measure", measured)

    return answers


def said_of_files(job: flink.Job, case: str, all_s: float = 8.0) -> dict:
    """Count the keys of the files that are checked as plain Python does."""
    found: Counter = Counter()
    for file in sorted(Path(job.selects[case].check).iterdir()):
        for line in file.read_text().splitlines():
            tweet = [int(word) for word in line.split(";")]
            if not (reach := words.DISTANCES[case]):
                found.update(tweet)
            for i, word in enumerate(tweet):
                found.update(word * words.VOCABULARY + o for o in tweet[i + 1 : i + 1 + reach])
    updates = {"key": list(found), "c": list(found.values())}
    return {"updates": updates, "part_s": [2.0] * 3, "all_s": [all_s] * 3, "scan_s": 1.0}


def test_flink_reads_the_same_tweets_and_its_rate_is_of_the_files_that_are_not_dropped(
    fake_flink, tmp_path
) -> None:
    fake_flink(said_of_files)
    found = on_flink(tmp_path, *words.DISTANCES)
    assert [e["case"] for e in found[:4]] == list(words.DISTANCES)
    assert {e["case"] for e in found[4:]} == set(words.DISTANCES)
    assert {e["engine"] for e in found[4:]} == {"flink-rocksdb"}
    assert [e["case"] for e in found if "skipped" in e] == ["pairs-3", "pairs-10"]
    # three files more, in six seconds
    rates = {e["case"]: e["rows_per_s"]["median"] for e in found[:4]}
    assert rates == {case: 3 * 20 * times / 6 for case, times in flink_words.TIMES.items()}
    whole = (tmp_path / "all-80").iterdir()
    assert [len(f.read_text().splitlines()) for f in whole] == [80] * flink_words.BATCHES


def test_a_wrong_count_of_flinks_is_a_wrong_answer(fake_flink, tmp_path) -> None:
    def off_by_one(job: flink.Job, case: str) -> dict:
        said = said_of_files(job, case)
        said["updates"]["c"][7] += 1
        return said

    fake_flink(off_by_one)
    with pytest.raises(WrongAnswer, match="flink-heap, pairs-3 is wrong in 1 of"):
        on_flink(tmp_path, "pairs-3")


def test_a_difference_within_flinks_noise_has_no_ratio(fake_flink, tmp_path) -> None:
    fake_flink(lambda job, case: said_of_files(job, case, all_s=2.5))
    found = on_flink(tmp_path, "words")
    assert [e["rows_per_s"] for e in found] == [None, None]
    exchanges = [{"case": "words", "shared_per_s": 40, "partitioned_per_s": 10}]
    assert [r["theirs"] for r in counts.ratios(exchanges, found)] == ["partitioned"]


def test_without_flink_every_case_says_why(monkeypatch, tmp_path) -> None:
    monkeypatch.delenv(flink.VARIABLE, raising=False)
    found = on_flink(tmp_path, "words", "pairs-any")
    assert [(e["engine"], e["case"]) for e in found] == [
        (engine, case) for engine in flink.BACKENDS for case in ("words", "pairs-any")
    ]
    assert all(flink.VARIABLE in e["skipped"] for e in found)
    assert sides.failed(found) == []


def test_a_flink_that_fails_is_named_case_by_case(fake_flink, monkeypatch, tmp_path) -> None:
    fake_flink(said_of_files)
    fine = flink.measure

    def heap_fails(python, name, job, timeout_s):
        if name == "flink-heap":
            raise EngineError("no such luck")
        return fine(python, name, job, timeout_s)

    monkeypatch.setattr(flink, "measure", heap_fails)
    found = on_flink(tmp_path, "words", "pairs-any")
    assert sides.failed(found) == ["flink-heap, words", "flink-heap, pairs-any"]
    assert [bool(e.get("rows_per_s")) for e in found] == [False, False, True, True]


# every statement is a job of Flink's, of a second or more: both backends need not run all of them
@pytest.mark.parametrize(
    ("engine", "cases"),
    [("flink-heap", tuple(words.DISTANCES)), ("flink-rocksdb", ("pairs-any",))],
)
def test_flink_itself_counts_exactly(monkeypatch, tmp_path, engine: str, cases: tuple) -> None:
    python, why = flink.find_flink()
    if python is None:
        pytest.skip(why)
    monkeypatch.setattr(flink, "BACKENDS", {engine: flink.BACKENDS[engine]})
    found = on_flink(tmp_path, *cases)
    assert sides.failed(found) == []
    assert [e["answer_rows"] for e in found] == [
        len(words.check_answer(case)["key"]) for case in cases
    ]


def test_counts_have_every_engine_in_one_list(monkeypatch) -> None:
    monkeypatch.setattr(counts, "_exchanges", _measured)
    monkeypatch.setattr(counts.on_spark, "compare", lambda *a, **k: [entry("headgate", "words", 5)])
    monkeypatch.setattr(
        counts.on_flink, "compare", lambda *a, **k: [entry("flink-heap", "words", 4)]
    )
    found = counts.run()
    assert [e["engine"] for e in found["engines"]] == ["headgate", "flink-heap"]
    words_only = [(r["theirs"], r["ratio"]) for r in found["ratios"] if r["case"] == "words"]
    assert words_only == [("partitioned", 4.0), ("headgate", 8.0), ("flink-heap", 10.0)]


def _measured(case: str, asked: counts.CountsParameters) -> dict:
    return {"case": case, "shared_per_s": 40, "partitioned_per_s": 10}


# -- judgement --------------------------------------------------------------------------------------


def test_sliding_windows_are_judged_by_how_much_slower_they_are() -> None:
    entries = [
        entry(engine, case, rate)
        for engine, fast, slow in (("headgate", 13.0, 10.0), ("spark-memory", 20.0, 1.0))
        for case, rate in (("tumbling", fast), ("sliding", slow))
    ]
    ours, theirs = windows.overlap(entries)
    assert (ours["ratio"], ours["met"]) == (1.3, True)
    assert (theirs["ratio"], theirs["met"]) == (20.0, None)


def test_a_side_that_failed_has_no_ratio() -> None:
    entries = [
        entry("headgate", "join", 2.0),
        {"engine": "spark-memory", "case": "join", "failed": "x"},
    ]
    assert sides.ratio(entries, ("headgate", "join"), ("spark-memory", "join")) is None
    assert sides.failed(entries) == ["spark-memory, join"]


def test_processors_are_judged_by_pairs_that_have_a_target() -> None:
    def one(engine: str, rate: float) -> dict:
        return {"engine": engine, "rows_per_s": {"median": rate}, "rows_per_batch": 10}

    made = processor.ratios([one("headgate-arrow", 100.0), one("applyInPandasWithState", 4.0)])
    assert [(r["ratio"], r["target"], r["met"]) for r in made] == [(25.0, 50.0, False)]


def test_the_vectorised_processor_also_runs_with_batches_as_small_as_the_others(
    monkeypatch,
) -> None:
    asked = []

    def ran(**given):
        asked.append(given)
        return {"engines": [], "failed": []}

    monkeypatch.setattr(processor.aggregate, "run", ran)
    processor.run(slow_rows_per_batch=100)
    first, second = asked
    assert "headgate-arrow" in first["engines"]
    assert (second["engines"], second["rows_per_batch"]) == ("headgate-arrow", 100)


def test_the_shared_exchange_is_judged_where_a_record_has_most_keys() -> None:
    exchanges = [
        {"case": case, "shared_per_s": 40, "partitioned_per_s": 10}
        for case in ("words", "pairs-any")
    ]
    made = counts.ratios(exchanges, [entry("spark-memory", "words", 20.0)])
    assert [(r["case"], r["theirs"], r["ratio"], r["met"]) for r in made] == [
        ("words", "partitioned", 4.0, None),
        ("words", "spark-memory", 2.0, None),
        ("pairs-any", "partitioned", 4.0, True),
    ]


def test_comparisons_are_judged_per_core() -> None:
    def row(form: str, per_core: float) -> dict:
        return {"form": form, "slots": 1, "comparisons_per_s_per_core": per_core}

    forms = {"every pair, 1T": 4e8, "band index, 1T": 2e10, "reference, record by record": 4e5}
    made = scalejoin.ratios([row(*one) for one in forms.items()])
    assert [r["met"] for r in made] == [False, True, None]
    assert made[2]["ratio"] == pytest.approx(1e-3)


def test_the_kernel_is_held_against_the_reference(monkeypatch) -> None:
    monkeypatch.setattr(scalejoin, "_REFERENCE", 100)
    assert scalejoin._reference(seed=1)["comparisons_per_s"] > 0

    def lossy(*given):
        return tuple(column[1:] for column in compare_all(*given))

    compare_all = scalejoin.compare_all
    monkeypatch.setattr(scalejoin, "compare_all", lossy)
    with pytest.raises(WrongAnswer, match="reference"):
        scalejoin._reference(seed=1)


def test_memory_is_compared_per_kind_of_key() -> None:
    def one(engine: str, kind: str, size: int) -> dict:
        return {"engine": engine, "case": kind, "bytes_per_million_keys": size}

    made = memory.ratios([one("headgate", "int", 50), one("spark-memory", "int", 200)])
    assert made == [{"theirs": "spark-memory", "keys": "int", "ratio": 4.0}]


def test_this_process_is_resident() -> None:
    if not Path("/proc/self/smaps_rollup").exists():
        pytest.skip("needs Linux's /proc")
    import os

    assert 0 < memory._rollup(os.getpid())["Anonymous"] <= memory._rollup(os.getpid())["Rss"]
    assert os.getpid() in descendants(os.getppid())


# -- parts --------------------------------------------------------------------------------------------


def test_parts_run_in_their_own_order() -> None:
    assert list(operators.chosen_parts("join,windows", {"slots": 1})) == ["windows", "join"]


@pytest.mark.parametrize(
    ("only", "given", "said"),
    [
        ("window", {}, "windows"),
        ("join", {"join_row": 1}, "join_rows"),
        (None, {"slot": 1}, "slots"),
    ],
)
def test_an_unknown_part_or_parameter_is_refused(only: str | None, given: dict, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        operators.run(only=only, **given)


def test_an_unknown_engine_is_refused() -> None:
    with pytest.raises(ConfigError, match="spark-rocksdb"):
        sides.engines_of("headgate,spark-rocks")


def test_all_that_was_judged_is_listed_with_its_part() -> None:
    result = {"ratios": [{"met": None}, {"ratio": 2.0, "met": True}], "engines": [{"a": 1}]}
    assert operators.judged("join", result) == [{"part": "join", "ratio": 2.0, "met": True}]
