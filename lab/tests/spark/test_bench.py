"""The benchmarks run on tiny input, and a wrong answer stops them; no time is looked at."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

from headgate.core.errors import ConfigError, EngineError
from headgate_lab.bench import (
    aggregate,
    cluster_kill,
    common,
    flink,
    overhead,
    repartition,
    soak,
    steady,
    wide,
)
from headgate_lab.bench.common import Answer, Input, WrongAnswer, child, spark_env
from headgate_lab.bench.native import BASELINES

pytestmark = pytest.mark.spark

DATA = Input(rows_per_batch=200, batches=2, keys=10, seed=3)

# One process for all engines: settings of other tests' session cannot be undone (RocksDB refuses
# the file system that headgate's session sets), and one start of the JVM is enough.
ANSWERS = """
import json, sys
from dataclasses import replace
from pathlib import Path
from pyspark.sql import functions as F
from headgate_lab.bench import native
from headgate.spark.cluster.session import session

work, engines = Path(sys.argv[1]), json.loads(sys.argv[2])
right = native.BASELINES["spark-memory"]
native.BASELINES["lossy"] = replace(
    right, query=lambda rows: native.counts_and_sums(rows.where("v <> 0 and k <> 3")))
native.BASELINES["off by one"] = replace(
    right, query=lambda rows: native.counts_and_sums(rows).withColumn("s", F.col("s") + 1))
spark = session("local[1]", **{"spark.sql.shuffle.partitions": 1}, **native.ROCKSDB)
for name in [*engines, "lossy", "off by one"]:
    for key, value in native.BASELINES[name].settings.items():
        if key.startswith("spark.sql."):
            spark.conf.set(key, value)
    rows = native.source(spark, work / "input")
    native.answer_of(native.native_writer(name, rows, work / "checkpoint" / name)).save(
        work / f"{name}.npz")
spark.stop()
"""


@pytest.fixture(scope="module")
def answers(tmp_path_factory) -> Path:
    work = tmp_path_factory.mktemp("answers")
    DATA.write(work / "input")
    able = [name for name, baseline in BASELINES.items() if baseline.missing() is None]
    command = [sys.executable, "-c", ANSWERS, str(work), json.dumps(able)]
    ran = subprocess.run(
        command, env=common.spark_env(), capture_output=True, text=True, check=False
    )
    assert ran.returncode == 0, ran.stderr[-4000:]
    return work


@pytest.mark.thorough
@pytest.mark.parametrize("engine", BASELINES)
def test_every_native_engine_gives_the_exact_answer(answers, engine):
    missing = BASELINES[engine].missing()
    if missing:
        pytest.skip(missing)
    totals = DATA.answer().check(Answer.load(answers / f"{engine}.npz"), engine)
    assert totals["count"] == DATA.rows_per_batch * DATA.batches


@pytest.mark.thorough
@pytest.mark.parametrize("engine", ["lossy", "off by one"])
def test_an_engine_that_is_wrong_is_caught(answers, engine):
    with pytest.raises(WrongAnswer, match=engine):
        DATA.answer().check(Answer.load(answers / f"{engine}.npz"), engine)


def test_the_exact_answer_is_that_of_plain_python():
    counts, sums = {}, {}
    for index in range(DATA.batches):
        for key, value in zip(*DATA.batch(index), strict=True):
            counts[key] = counts.get(key, 0) + 1
            sums[key] = sums.get(key, 0) + value
    exact = DATA.answer()
    assert exact.keys.tolist() == sorted(counts)
    assert exact.counts.tolist() == [counts[k] for k in sorted(counts)]
    assert exact.sums.tolist() == [sums[k] for k in sorted(sums)]


def test_the_last_update_of_a_key_is_its_answer():
    first = tuple(np.array(column) for column in ([2, 1], [1, 1], [5, 6]))
    second = tuple(np.array(column) for column in ([2], [3], [9]))
    got = Answer.of_updates([first, second])
    assert (got.keys.tolist(), got.counts.tolist(), got.sums.tolist()) == ([1, 2], [1, 3], [6, 9])


def test_a_missing_key_a_wrong_count_and_a_wrong_sum_are_wrong_answers():
    exact = DATA.answer()
    one = np.eye(1, len(exact.keys), dtype=np.int64)[0]
    exact.check(exact, "right")
    for wrong in (
        Answer(exact.keys[1:], exact.counts[1:], exact.sums[1:]),
        Answer(exact.keys, exact.counts + one, exact.sums),
        Answer(exact.keys, exact.counts, exact.sums - one),
        Answer.of_updates([]),
    ):
        with pytest.raises(WrongAnswer):
            exact.check(wrong, "wrong")


TINY = {
    "rows_per_batch": 100,
    "batches": 2,
    "keys": (10,),
    "dropped_batches": 1,
    "check_rows_per_batch": 50,
    "check_keys": 5,
    "slots": 1,
}


def test_a_whole_run_has_rates_answer_and_machine():
    result = aggregate.run(engines="spark-memory", **TINY)
    (entry,) = result["engines"]
    assert "failed" not in entry, entry["failed"]
    assert entry["rows_per_s"]["median"] > 0
    assert entry["answer"]["count"] == 3 * TINY["check_rows_per_batch"]
    assert result["machine"]["cores_of_host"] >= 1
    json.dumps(result)


def test_a_run_with_a_wrong_answer_raises(monkeypatch):
    def wrong(command, env, timeout_s):
        request = json.loads(command[command.index("--request") + 1])
        nothing = Answer.of_updates([])
        nothing.save(Path(request["directory"]) / "answer.npz")
        return {"batches": [], "phases_ms": [], "settings": {}}

    monkeypatch.setattr(aggregate, "child", wrong)
    with pytest.raises(WrongAnswer, match="spark-memory"):
        aggregate.run(engines="spark-memory", **TINY)


def _exact(request):
    check = Input(TINY["check_rows_per_batch"], 3, TINY["check_keys"], seed=1)
    check.answer().save(Path(request["directory"]) / "answer.npz")


def test_other_batches_than_asked_for_are_no_rate(monkeypatch):
    def merged(command, env, timeout_s):
        _exact(json.loads(command[command.index("--request") + 1]))
        both = {"rows": 200, "durations_ms": {"triggerExecution": 1}}
        return {"batches": [both], "phases_ms": [], "settings": {}}

    monkeypatch.setattr(aggregate, "child", merged)
    (entry,) = aggregate.run(engines="spark-memory", **TINY)["engines"]
    assert "made batches of [200] rows" in entry["failed"]


@pytest.mark.parametrize(("all_s", "clear"), [(2.2, False), (9.0, True)])
def test_a_difference_within_flinks_noise_is_no_rate(monkeypatch, all_s, clear):
    def measured(python, name, job, timeout_s):
        exact = Input(TINY["check_rows_per_batch"], 3, TINY["check_keys"], seed=1).answer()
        updates = {"k": exact.keys, "c": exact.counts, "s": exact.sums}
        times = {"part_s": [2, 2.1, 2], "all_s": [all_s] * 3, "scan_s": 1}
        return {"aggregate": {"updates": updates, **times}}

    monkeypatch.setattr(flink, "find_flink", lambda: ("python", "2.3.0"))
    monkeypatch.setattr(flink, "measure", measured)
    (entry,) = aggregate.run(engines="flink-heap", **TINY)["engines"]
    assert (entry["rows_per_s"] is not None) == clear


def test_an_engine_that_fails_leaves_the_others_their_numbers(monkeypatch):
    def failing(command, env, timeout_s):
        raise EngineError("no such luck")

    monkeypatch.setattr(aggregate, "child", failing)
    result = aggregate.run(engines=("spark-memory", "flink-heap"), **TINY)
    assert result["failed"] == ["spark-memory"]


def test_a_childs_progress_is_seen_while_it_runs_and_its_other_words_only_if_it_fails(capfd):
    says = (
        "import sys; from headgate_lab.bench.common import progress;"
        "progress('half way'); print('JVM noise', file=sys.stderr);"
    )
    assert child([sys.executable, "-c", says + "print('{}')"], spark_env(), 60) == {}
    assert capfd.readouterr().err == "half way\n"
    with pytest.raises(EngineError, match="JVM noise"):
        child([sys.executable, "-c", says + "sys.exit(1)"], spark_env(), 60)


def test_a_child_is_done_when_it_ends_and_what_it_leaves_ends_with_it():
    leaves = (
        "import subprocess as s, sys;"
        "left = s.Popen([sys.executable, '-c', 'import time; time.sleep(600)']);"
        "print('{\"pid\": %d}' % left.pid)"
    )
    # shorter than what is left sleeps, with its output open
    pid = child([sys.executable, "-c", leaves], spark_env(), 60)["pid"]
    for _ in range(200):  # a kill takes its time
        if not _running(pid):
            return
        time.sleep(0.05)
    pytest.fail(f"process {pid} is still there")


def _running(pid: int) -> bool:
    try:
        return "zombie" not in Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return False


def test_ratios_stand_beside_their_targets():
    def entry(engine, rate, rows=10):
        rates = {"median": rate}
        return {"keys": 1_000_000, "engine": engine, "rows_per_s": rates, "rows_per_batch": rows}

    found = aggregate._ratios(
        [entry("headgate", 8.0), entry("spark-rocksdb", 2.5), entry("flink-heap", 1.0, rows=5)]
    )
    rocksdb, heap = found
    assert (rocksdb["ratio"], rocksdb["target"], rocksdb["met"]) == (3.2, 4.0, False)
    assert (heap["target"], heap["met"], heap["same_rows_per_batch"]) == (None, None, False)


@pytest.mark.thorough
def test_the_bare_side_of_the_overhead_runs():
    result = overhead.run(
        rows=20, batches=2, rounds=2, dropped_batches=0, warmup_batches=0, slots=1, sides=("bare",)
    )
    assert result["sides"]["bare"]["batches"] == 2
    assert result["ratio"] is None


def test_without_flink_its_baseline_says_why(monkeypatch):
    monkeypatch.delenv(flink.VARIABLE, raising=False)
    assert flink.VARIABLE in flink.find_flink()[1]
    monkeypatch.setenv(flink.VARIABLE, "/nowhere/python")
    assert "cannot import pyflink" in flink.find_flink()[1]


@pytest.mark.parametrize(
    ("run", "given", "said"),
    [
        (aggregate.run, {"row_per_batch": 1}, "rows_per_batch"),
        (aggregate.run, {"batches": 2}, "dropped_batches"),
        (aggregate.run, {"engines": ("spark-rocks",)}, "spark-rocksdb"),
        (aggregate.run, {"function": "stdev"}, "stddev"),
        (aggregate.run, {"function": "stddev", "engines": ("transformWithState",)}, "only"),
        (overhead.run, {"rounds": 0}, "rounds"),
        (overhead.run, {"sides": ("bear",)}, "sides"),
        (cluster_kill.run, {"victims": "driver,cat"}, "cat"),
        (repartition.run, {"state": "100"}, "no unit"),
        (repartition.run, {"to_partitions": 8}, "ask for another"),
        (steady.run, {"store_delay": "50"}, "no unit"),
    ],
)
def test_a_parameter_out_of_place_is_refused(run, given, said):
    with pytest.raises(ConfigError, match=said):
        run(**given)


def test_kills_on_a_cluster_hit_every_victim_at_every_moment():
    chosen = cluster_kill.ClusterKillParameters(count=12, at="random,migration:routed,assignment")
    planned = cluster_kill.strikes(chosen)
    assert len({(one.victim, one.at) for one in planned}) == 12
    assert planned == cluster_kill.strikes(chosen), "a seed is a run"
    assert planned != cluster_kill.strikes(replace(chosen, seed=1))


def test_a_kill_waits_for_its_event_of_the_journal():
    routed = cluster_kill.Strike("driver", "migration:routed", 0.0, 0.0)
    assert routed.waits_for({"event": "migration", "what": "routed"})
    assert not routed.waits_for({"event": "migration", "what": "started"})
    assert not routed.waits_for({"event": "batch"})
    assert cluster_kill.Strike("driver", "batch", 0.0, 0.0).waits_for({"event": "batch"})


def test_steady_counts_objects_and_tasks_that_read_their_state():
    batches = [
        {"at_ms": 2_000.0, "duration_ms": 500.0, "slots": 4},
        {"at_ms": 3_000.0, "duration_ms": 500.0, "slots": 4},
    ]

    def call(act, kind, at_ms, pid=1):
        return {"act": act, "kind": kind, "at_ms": at_ms, "pid": pid}

    calls = [
        call("write", "intents", 1_600),
        call("write", "intents", 2_600),
        call("write", "manifests", 2_700),
        call("read", "manifests", 1_700, pid=7),
        call("read", "changelog", 1_750, pid=7),
        call("read", "changelog", 2_800, pid=7),
        call("read", "backlog", 2_800, pid=8),
        call("read", "manifests", 2_800, pid=9),
        call("write", "manifests", 1_400),
        call("write", "manifests", 3_100),
    ]
    found = steady.counted(calls, batches, driver=9)
    assert found["objects"] == {"intents": 1.0, "manifests": 0.5}
    assert found["reads"] == 1.5
    assert found["found_share"] == 1 - 2 / 8


def test_a_wide_input_fills_every_key_once_and_knows_its_answer(tmp_path):
    data = wide.WideInput(keys=100, rows_per_batch=10, seed=3)
    assert data.fill(tmp_path) == 1
    data.touch(tmp_path, 0)
    data.touch(tmp_path, 1)
    keys = np.concatenate([pq.read_table(f)["k"].to_numpy() for f in tmp_path.glob("*.parquet")])
    values, counts = np.unique(keys, return_counts=True)
    exact = data.answer(2)
    assert len(values) == 100
    touched = np.isin(values, exact.keys)
    assert counts[touched].tolist() == exact.counts.tolist()
    assert set(counts[~touched]) == {1}
    assert exact.sums.tolist() == (exact.counts * (exact.keys % 1_000)).tolist()


def test_a_soak_says_what_grows_with_the_number_of_steps_and_not_with_its_warm_up():
    samples = [
        {"at_s": at_s, "steps": 2 * at_s, "starts": 1, "kept": 5, "grown_kb": 10 + at_s}
        for at_s in range(100)
    ]
    for sample in samples[:20]:
        sample["kept"] = 5_000 - sample["at_s"]
    found = soak.judged(samples, 20.0)
    assert found["per_1000_steps"] == {"kept": 0.0, "grown_kb": 500.0}
    assert (found["steps"], found["steps_counted"], found["starts"]) == (198, 158, 1)
    assert (found["first"]["at_s"], found["last"]["at_s"]) == (20, 99)


@pytest.mark.parametrize(
    ("name", "value"), [("duration", "30"), ("only", "with,neither"), ("rate", "0"), ("keys", "x")]
)
def test_a_soak_of_nonsense_is_refused(name, value):
    with pytest.raises(ConfigError):
        soak.run(**{name: value})


@pytest.mark.thorough
def test_a_soak_runs_both_parts_and_counts_what_is_kept():
    asked = {"duration": "6 s", "warmup": "0 s", "every": "2 s", "trigger": "100 ms"}
    found = soak.run(**asked, rate=100, keys=50)["parts"]
    assert found["with"]["last"]["held_epochs"] > found["without"]["last"]["held_epochs"] == 1
    for part in found.values():
        assert part["steps"] > 0
        assert part["last"]["manifests"] <= 2
        assert part["last"]["driver_rss_kb"] > part["last"]["driver_anon_kb"] > 0
