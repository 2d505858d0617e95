"""`doctor` names each planted fault with its value and its remedy, and nothing where nothing is wrong."""

from __future__ import annotations

import json
import mmap
import os
import resource
import subprocess
import sys
import zipfile
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyspark
import pytest

from headgate.cli.answer import exit_code
from headgate.cli.cluster import doctor_lines
from headgate.spark.cluster import doctor as doctor_module
from headgate.spark.cluster.doctor import Needs, _outside, _unreachable, doctor, judge
from headgate.spark.cluster.host_facts import HostFacts, collect_facts
from headgate.spark.jvm import contract

GB = 10**9
NEEDS = Needs(state_bytes=3 * GB)
GOOD = HostFacts(
    executor="7",
    host="node-3",
    versions={"python": "3.11.7", "headgate": "0.1.0", "pyarrow": "26.0.1"},
    arena="/dev/shm/headgate-0",
    arena_problem=None,
    arena_bytes=16 * GB,
    arena_free_bytes=12 * GB,
    address_bytes=None,
    mapped_bytes=GB // 2,
    disk="/tmp",
    disk_free_bytes=50 * GB,
    clock_s=0.0,
    checkpoint_problem=None,
)

FAULTS = [
    (
        {"arena_free_bytes": 64 * 2**20, "arena_bytes": 64 * 2**20},
        "67.1 MB of 67.1 MB free in /dev/shm/headgate-0, the state needs 3 GB; mount",
    ),
    ({"arena_problem": "is open to others"}, "is open to others; make room"),
    (
        {"address_bytes": 2 * GB},
        "2 GB of addresses, and state and code need 3.5 GB; raise spark.exec",
    ),
    ({"versions": GOOD.versions | {"pyarrow": "18.0.0"}}, "has pyarrow 18.0.0, the driver 26.0.1;"),
    ({"versions": GOOD.versions | {"headgate": None}}, "has headgate not at all, the driver 0.1.0"),
    ({"versions": GOOD.versions | {"python": "3.12.7"}}, "has python 3.12.7, the driver 3.11.7;"),
    ({"disk_free_bytes": GB}, "1 GB free in /tmp for shuffles; free 3 GB"),
    ({"checkpoint_problem": "nothing can be written there"}, "checkpoint directory: nothing can"),
]


@pytest.mark.parametrize(("fault", "says"), FAULTS)
def test_a_planted_fault_is_named_with_value_and_remedy(fault: dict[str, Any], says: str) -> None:
    (text,) = judge(replace(GOOD, **fault), 0.0, GOOD, NEEDS)
    assert text.startswith("executor 7 on node-3 ")
    assert says in text
    assert text.endswith(".")
    assert text.count(". ") == 0, "one sentence"


def test_nothing_is_said_of_a_sound_executor_with_another_patch_release_of_python() -> None:
    other = replace(GOOD, versions=GOOD.versions | {"python": "3.11.9"}, address_bytes=4 * GB)
    assert judge(other, 0.05, GOOD, NEEDS) == []


def test_a_clock_outside_of_the_time_in_which_it_was_read_is_off() -> None:
    assert _outside(5.0, began_s=4.0, ended_s=6.0) == 0.0
    (ahead,) = judge(GOOD, _outside(9.0, began_s=4.0, ended_s=6.0), GOOD, NEEDS)
    (behind,) = judge(GOOD, _outside(2.5, began_s=4.0, ended_s=6.0), GOOD, NEEDS)
    assert "at least 3 s ahead of the driver's" in ahead
    assert "at least 1.5 s behind the driver's" in behind


@pytest.mark.parametrize(
    ("error", "says"),
    [
        (
            "ModuleNotFoundError: No module named 'headgate'\n at x",
            "no Python module headgate; inst",
        ),
        (
            'java.io.IOException: Cannot run program "/opt/py"',
            "cannot start /opt/py; set spark.pyspark",
        ),
        (
            "a\norg.apache.spark.SparkException: Job aborted\n at x",
            "SparkException: Job aborted; look",
        ),
    ],
)
def test_a_task_that_cannot_run_at_all_is_put_down_to_its_cause(error: str, says: str) -> None:
    assert says in _unreachable(RuntimeError(error))


def test_an_executor_that_runs_no_task_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    living = [SimpleNamespace(id=number, host="node-3") for number in ("7", "8")]
    pool = SimpleNamespace(local=True, living=lambda: living)
    monkeypatch.setattr(doctor_module, "ExecutorPool", lambda spark: pool)
    monkeypatch.setattr(doctor_module, "_everybody", lambda *_: {"7": (GOOD, 0.0)})
    monkeypatch.setattr(doctor_module, "collect_facts", lambda: GOOD)
    for name in ("require_session", "_contract", "_speculation", "_settings"):
        monkeypatch.setattr(doctor_module, name, lambda *_: [])
    spark: Any = SimpleNamespace(sparkContext=SimpleNamespace(master="spark://node-1:7077"))
    answer = doctor(spark, state="3 GB")
    (problem,) = answer["problems"]
    assert problem.startswith("executor 8 on node-3 ran no task within 8 jobs; look into its log")
    assert not answer["sound"]
    living.pop()
    assert doctor(spark, state="3 GB")["problems"] == []


def test_the_limit_of_addresses_that_holds_is_told_and_how_much_of_it_is_taken(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    limits = [(5 * GB, resource.RLIM_INFINITY), (resource.RLIM_INFINITY, 5 * GB)]
    monkeypatch.setattr(resource, "getrlimit", lambda _: limits.pop(0))
    assert [collect_facts().address_bytes, collect_facts().address_bytes] == [5 * GB, None]
    # addresses count, whether or not there is memory behind them
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
    monkeypatch.undo()
    with mmap.mmap(-1, 1 << 40, flags=flags, prot=mmap.PROT_READ):
        assert collect_facts().mapped_bytes > 1 << 40


def test_an_arena_directory_that_is_no_directory_is_told_not_raised(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("HEADGATE_ARENA_DIR", str(tmp_path / "file"))
    facts = collect_facts()
    assert facts.arena == ""
    assert "cannot keep state" in judge(facts, 0.0, facts, Needs(1))[0]


def test_all_that_doctor_found_is_a_line() -> None:
    executor = {"executor": "1", "host": "h", "arena_free_bytes": 2 * GB, "arena": "/dev/shm"}
    executor |= {"disk_free_bytes": 3 * GB, "disk": "/tmp"}
    result = {
        "executors": [executor],
        "problems": ["no room"],
        "advice": ["less state"],
        "unchecked": ["the store"],
        "sound": False,
    }
    first, *rest = doctor_lines(result)
    assert first.startswith("executor  1 on h: 2")
    assert "in /dev/shm" in first
    assert "in /tmp" in first
    assert rest == [
        "problem   no room",
        "advice    less state",
        "unchecked the store",
        "sound     no",
    ]
    assert doctor_lines(result | {"sound": True})[-1] == "sound     yes"
    nowhere = result | {"executors": [executor | {"arena": ""}]}
    assert "in no directory" in doctor_lines(nowhere)[0]


def test_a_session_that_has_room_is_sound_and_one_that_needs_more_is_not(
    spark: Any, tmp_path: Path
) -> None:
    (tmp_path / "ck").mkdir()
    good = doctor(spark, state="1 MB", checkpoint=str(tmp_path / "ck"))
    assert (good["sound"], good["problems"], exit_code(good)) == (True, [], 0)
    assert [one["executor"] for one in good["executors"]] == ["driver"]
    assert list((tmp_path / "ck").iterdir()) == []
    bad = doctor(spark, state="1000 TB")
    assert exit_code(bad) == 1
    assert any("the state needs 1e+03 TB" in line for line in doctor_lines(bad))


def test_a_checkpoint_that_is_not_there_is_named_and_not_made(spark: Any, tmp_path: Path) -> None:
    found = doctor(spark, state="1 MB", checkpoint=str(tmp_path / "nope" / "x"))
    assert not found["sound"]
    assert "nope/x does not exist" in found["problems"][0]
    assert not (tmp_path / "nope").exists()


def test_a_checkpoint_that_the_driver_cannot_write_is_named(spark: Any, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    found = doctor(spark, state="1 MB", checkpoint=str(tmp_path / "file" / "ck"))
    assert "the driver cannot write to the checkpoint directory" in found["problems"][0]


def test_the_contract_names_the_member_that_a_changed_spark_lacks(tmp_path):
    """The class is Spark's own, with the method's name changed in its constants, ahead of its jar."""
    gone = next(call for call in contract.calls() if call.member == "getStateValueWatermark")
    name = gone.owner.replace(".", "/") + ".class"
    (jar,) = Path(pyspark.__file__).parent.glob("jars/spark-catalyst_*.jar")
    changed = tmp_path / "classes" / name
    changed.parent.mkdir(parents=True)
    with zipfile.ZipFile(jar) as classes:
        other = f"{gone.member[:-1]}X".encode()
        changed.write_bytes(classes.read(name).replace(gone.member.encode(), other))
    defaults = f"spark.driver.extraClassPath {tmp_path / 'classes'}\n"
    (tmp_path / "spark-defaults.conf").write_text(defaults)
    done = subprocess.run(
        [sys.executable, "-m", "headgate.cli", "doctor", "--contract", "--json"],
        env={**os.environ, "SPARK_CONF_DIR": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    found = json.loads(done.stdout)
    assert (done.returncode, found["sound"]) == (1, False)
    (problem,) = found["problems"]
    assert str(gone) in problem
