"""What the doctor makes of a cluster, over executors that are made up; here without Spark."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from headgate.core.errors import CheckpointError
from headgate.spark.cluster import doctor as doctors
from headgate.spark.cluster.doctor import doctor
from headgate.spark.cluster.host_facts import HostFacts, answer_name, collect_facts
from headgate.spark.jvm.errors import JvmError

FACTS = replace(
    collect_facts(), executor="1", host="h1", arena_problem=None, arena_free_bytes=1 << 40,
    arena_bytes=1 << 41, address_bytes=None, disk_free_bytes=1 << 40,
)  # fmt: skip


class Cluster:
    """Executors, and what each look at them brings."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now_s = 1000.0
        self.looks: list[list[HostFacts]] = [[FACTS]]
        self.living = [SimpleNamespace(id="1", host="h1")]
        self.jobs = 0
        self.places, self.missing = True, list[str]()
        self.conf = {setting.key: setting.value for setting in doctors.SETTINGS}
        self.cluster_conf: dict[str, str] = {}
        self.marks: list[Any] = []
        clock = SimpleNamespace(
            time=lambda: self.now_s, monotonic=lambda: self.now_s, sleep=self.pass_
        )
        monkeypatch.setattr(doctors, "time", clock)
        pool = SimpleNamespace(cores=4, local=False, living=lambda: self.living)
        monkeypatch.setattr(doctors, "ExecutorPool", lambda spark: pool)
        monkeypatch.setattr(doctors, "Placement", lambda spark: SimpleNamespace(active=self.places))
        monkeypatch.setattr(doctors.contract, "missing", lambda spark, minor: self.missing)
        context = SimpleNamespace(
            master="spark://m", parallelize=self.parallelize,
            getConf=lambda: SimpleNamespace(get=self.cluster_conf.get),
        )  # fmt: skip
        self.session: Any = SimpleNamespace(
            sparkContext=context, version="4.3.0",
            conf=SimpleNamespace(get=self.conf.get),
        )  # fmt: skip

    def pass_(self, seconds: float) -> None:
        self.now_s += seconds

    def parallelize(self, numbers: range, tasks: int) -> Any:
        assert len(numbers) == tasks == 4

        def run(look: Any) -> Any:
            self.marks.append(look.mark)
            self.jobs += 1
            self.now_s += 1.0
            found = self.looks[min(self.jobs, len(self.looks)) - 1]
            return SimpleNamespace(collect=lambda: [self.at_now(facts) for facts in found])

        return SimpleNamespace(map=run)

    def at_now(self, facts: HostFacts) -> HostFacts:
        """Return facts whose clock is read now, off by what stands there."""
        off_s = facts.clock_s if abs(facts.clock_s) < 100 else 0.0
        return replace(facts, clock_s=self.now_s - 0.5 + off_s)


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Cluster:
    return Cluster(monkeypatch)


def test_a_cluster_without_a_fault_is_sound(cluster: Cluster) -> None:
    found = doctor(cluster.session)
    assert found["problems"] == []
    assert (found["sound"], found["advice"], found["placement"]) == (True, [], None)
    assert found["master"] == "spark://m"
    assert [(e["executor"], e["clock_off_s"]) for e in found["executors"]] == [("1", 0.0)]
    assert found["unchecked"] == ["checkpoint (name it with --checkpoint)"]
    assert cluster.jobs == doctors._ROUNDS[0]


def test_without_executors_nothing_more_is_looked_at(cluster: Cluster) -> None:
    cluster.living = []
    found = doctor(cluster.session)
    assert (found["sound"], found["executors"], found["unchecked"]) == (False, [], ["executors"])
    assert "no executor has come from spark://m within" in found["problems"][0]
    assert cluster.jobs == 0


def test_executors_are_waited_for_until_no_more_come(cluster: Cluster) -> None:
    came: list[Any] = []

    def living() -> list[Any]:
        if cluster.now_s > 1002.0 and len(came) < 2:
            came.append(SimpleNamespace(id=str(len(came)), host="h"))
        return came

    pool: Any = SimpleNamespace(living=living)
    assert doctors._wait_for_executors(pool)
    assert 1002.0 + doctors._SETTLED_S < cluster.now_s < 1000.0 + doctors._REGISTER_S
    assert len(came) == 2


def test_what_a_task_failed_with_is_told_and_the_settings_are_looked_at_all_the_same(
    cluster: Cluster,
) -> None:
    def fail(*_: Any) -> None:
        raise JvmError("No module named 'pyarrow'")

    cluster.session.sparkContext.parallelize = fail
    del cluster.conf[doctors.SETTINGS[0].key]
    found = doctor(cluster.session)
    assert found["problems"] == [doctors._unreachable(JvmError("No module named 'pyarrow'"))]
    assert "executors have no Python module pyarrow" in found["problems"][0]
    assert len(found["advice"]) == 1
    assert found["advice"][0].startswith(f"{doctors.SETTINGS[0].key} is not ")


def test_an_executor_that_ran_nothing_is_named(cluster: Cluster) -> None:
    cluster.living.append(SimpleNamespace(id="2", host="h2"))
    found = doctor(cluster.session)
    assert cluster.jobs == doctors._ROUNDS[1], "it is tried for longer"
    [text] = found["problems"]
    assert text.startswith("executor 2 on h2 ran no task within")
    assert found["placement"] is True


def test_executors_that_are_reached_one_after_the_other_will_do(cluster: Cluster) -> None:
    cluster.living.append(SimpleNamespace(id="2", host="h2"))
    other = replace(FACTS, executor="2", host="h2")
    cluster.looks = [[FACTS], [FACTS], [FACTS], [FACTS], [FACTS, other]]
    found = doctor(cluster.session)
    assert found["problems"] == []
    assert [e["executor"] for e in found["executors"]] == ["1", "2"]
    assert cluster.jobs == 5


def test_slots_that_cannot_be_bound_matter_where_there_are_several_hosts(
    cluster: Cluster,
) -> None:
    cluster.places = False
    assert doctor(cluster.session)["placement"] is None
    cluster.living.append(SimpleNamespace(id="2", host="h2"))
    cluster.looks = [[FACTS, replace(FACTS, executor="2", host="h2")]]
    found = doctor(cluster.session)
    assert found["placement"] is False
    assert "slots cannot be bound to hosts" in found["problems"][0]


def test_a_clock_is_off_by_the_most_that_a_look_has_proved(cluster: Cluster) -> None:
    cluster.looks = [[replace(FACTS, clock_s=off_s)] for off_s in (0.0, 5.0, 3.0)]
    found = doctor(cluster.session)
    [executor] = found["executors"]
    assert executor["clock_off_s"] == pytest.approx(4.5 + doctors._HOLD_S)
    assert "has a clock at least" in found["problems"][0]


def test_a_private_build_and_speculation_are_told(cluster: Cluster) -> None:
    cluster.missing = ["a.b()", "c.d()"]
    cluster.cluster_conf["spark.speculation"] = "true"
    first, second = doctor(cluster.session)["problems"]
    assert "this Spark 4.3.0 lacks 2 of the methods" in first
    assert "such as a.b();" in first
    assert second.startswith("spark.speculation is true")


# --- The checkpoint's directory -------------------------------------------------------------------------


@pytest.fixture
def seen(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """Return the files that Spark was asked whether it sees them."""
    asked: list[Path] = []
    monkeypatch.setattr(doctors, "resolved", lambda spark, text: Path(text))
    monkeypatch.setattr(doctors, "check_seen", lambda spark, path: asked.append(path))
    return asked


def test_a_file_is_left_in_the_checkpoint_directory_and_goes_with_its_answers(
    cluster: Cluster, seen: list[Path], tmp_path: Path
) -> None:
    with doctors._leave_mark(cluster.session, str(tmp_path)) as (mark, problems):
        assert problems == []
        assert isinstance(mark, Path)
        assert [mark] == list(tmp_path.iterdir()) == seen
        answer_name(mark, "1@h1").touch()
        other = replace(FACTS, executor="2", host="h2")
        broken = replace(FACTS, executor="3", checkpoint_problem="it is read-only")
        found = {facts.executor: (facts, 0.0) for facts in (FACTS, other, broken)}
        [text] = doctors._unanswered(mark, found)
        assert text.startswith("executor 2 on h2 writes to a checkpoint directory that the driver")
    assert list(tmp_path.iterdir()) == []


def test_a_directory_that_cannot_be_used_is_told_and_the_rest_is_looked_at(
    cluster: Cluster, seen: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    del seen
    found = doctor(cluster.session, checkpoint=str(tmp_path / "none"))
    assert found["unchecked"] == []
    [text] = found["problems"]
    assert f"the checkpoint directory {tmp_path / 'none'} does not exist; make it" in text
    assert len(found["executors"]) == 1
    (tmp_path / "file").touch()
    [text] = doctor(cluster.session, checkpoint=str(tmp_path / "file"))["problems"]
    assert "the driver cannot write to the checkpoint directory" in text

    def refuse(*_: Any) -> None:
        raise CheckpointError("Spark does not see it.")

    monkeypatch.setattr(doctors, "check_seen", refuse)
    assert doctor(cluster.session, checkpoint=str(tmp_path))["problems"] == [
        "Spark does not see it."
    ]


def test_executors_get_the_mark_of_the_checkpoint(
    cluster: Cluster, seen: list[Path], tmp_path: Path
) -> None:
    [text] = doctor(cluster.session, checkpoint=str(tmp_path))["problems"]
    assert text.startswith("executor 1 on h1 writes to a checkpoint directory that the driver does")
    assert set(cluster.marks) == set(seen)


def test_a_session_of_its_own_is_asked_what_was_asked_for_and_ended(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    did: list[Any] = []
    made = SimpleNamespace(stop=lambda: did.append("stopped"))
    monkeypatch.setattr(doctors, "session", lambda *a, **k: did.append((a, k)) or made)
    monkeypatch.setattr(doctors, "doctor", lambda *a, **k: did.append((a, k)))
    doctors.run("local[3]", state="2 GB", checkpoint="ck", conf={"a": "b"})
    assert did == [
        (("local[3]",), {"name": "headgate-doctor", "a": "b"}),
        ((made,), {"state": "2 GB", "checkpoint": "ck"}),
        "stopped",
    ]
