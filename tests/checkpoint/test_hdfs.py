"""Files of a checkpoint on HDFS: a cluster in memory that loses answers, and a real one."""

from __future__ import annotations

import importlib.util
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyspark
import pytest

from headgate.checkpoint import hdfs
from headgate.checkpoint.checkpoint import Checkpoint
from headgate.checkpoint.manifest import Manifest
from headgate.checkpoint.place import Files, files_at
from headgate.core.errors import CheckpointError, HeadgateError
from headgate_lab.testing.files import FilesContract
from headgate_lab.testing.hdfs import AWAY, LATE, LOST, FakeHdfs, MiniHdfs

PLACE = "hdfs://node:8020/ck"


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeHdfs]:
    made = FakeHdfs()
    library: Any = SimpleNamespace(Client=lambda *_, **__: made, WriteOptions=lambda **given: given)
    monkeypatch.setitem(sys.modules, "hdfs_native", library)
    hdfs._client_of.cache_clear()
    monkeypatch.setattr(hdfs.HdfsFiles, "_reach", lambda self: None)
    monkeypatch.setattr(hdfs, "_WAIT_S", 0.001)
    monkeypatch.setattr(hdfs, "_GIVE_UP_S", 0.2)
    yield made
    hdfs._client_of.cache_clear()


def on(cluster: FakeHdfs) -> Files:
    return files_at(PLACE, "headgate")


class TestHdfsInMemory(FilesContract):
    @pytest.fixture(autouse=True)
    def _of(self, cluster: FakeHdfs) -> None:
        self.cluster = cluster

    def open_files(self, directory: Path) -> Files:
        return files_at(f"hdfs://node:8020{directory}")


@pytest.mark.parametrize("kind", [LOST, AWAY, LATE])
def test_a_commit_that_goes_wrong_is_made_once_and_known_as_ones_own(
    cluster: FakeHdfs, kind: str
) -> None:
    files = on(cluster)
    cluster.faults.append(("rename", kind))
    files.put_new("manifests/0", b"mine")
    assert not cluster.faults, "the fault happened"
    assert cluster.deliver() == [False] * (kind == LATE), "what comes late comes too late"
    assert files.get("manifests/0") == b"mine"
    assert list(cluster.files) == ["/ck/headgate/manifests/0"], "nothing temporary is left"


@pytest.mark.parametrize("kind", [LOST, AWAY, LATE])
def test_a_commit_that_goes_wrong_does_not_take_anothers_success_for_its_own(
    cluster: FakeHdfs, kind: str
) -> None:
    files = on(cluster)
    files.put_new("manifests/0", b"another's")
    cluster.faults.append(("rename", kind))
    with pytest.raises(FileExistsError):
        files.put_new("manifests/0", b"mine")
    cluster.deliver()
    assert files.get("manifests/0") == b"another's"


def test_a_driver_killed_in_the_middle_of_a_write_leaves_no_manifest(
    cluster: FakeHdfs, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = on(cluster)
    cluster.create("/ck/headgate/manifests/.0123456789abcdef.tmp", None).write(b"half")
    assert not files.exists("manifests/0")
    files.put_new("manifests/0", b"whole")
    checkpoint = Checkpoint(PLACE)
    assert checkpoint.steps() == []
    assert files.names("manifests") == [".0123456789abcdef.tmp", "0"]


@pytest.mark.parametrize("method", ["create", "rename", "read", "get_file_info", "list_status"])
def test_a_name_node_that_is_away_for_a_while_is_waited_for(cluster: FakeHdfs, method: str) -> None:
    files = on(cluster)
    files.put("intents/0", b"old")
    cluster.faults += [(method, AWAY)] * 3
    files.put("intents/0", b"new")
    assert files.get("intents/0") == b"new"
    assert files.exists("intents/0")
    assert files.names("intents") == ["0"]
    assert not cluster.faults


def test_a_name_node_that_does_not_answer_is_asked_again_on_a_new_connection(
    cluster: FakeHdfs, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = on(cluster)
    files.put("x", b"1")
    monkeypatch.setattr(hdfs, "_ANSWER_S", 0.05)
    silent, hung = threading.Event(), FakeHdfs()
    monkeypatch.setattr(hung, "create", lambda *_: silent.wait(30.0))
    monkeypatch.setattr(files, "_client", hung)
    files.put_new("manifests/0", b"mine")
    monkeypatch.setattr(files, "_client", hung)
    files.put("manifests/1", b"mine too")
    silent.set()
    assert cluster.files["/ck/headgate/manifests/0"] == b"mine"
    assert cluster.files["/ck/headgate/manifests/1"] == b"mine too"


def test_only_its_owner_may_look_into_what_is_written(
    cluster: FakeHdfs, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[object] = []
    create, mkdirs = cluster.create, cluster.mkdirs
    monkeypatch.setattr(cluster, "create", lambda *given: made.append(given[1]) or create(*given))
    monkeypatch.setattr(cluster, "mkdirs", lambda *given: made.append(given) or mkdirs(*given))
    files = on(cluster)
    files.prepare(["intents"])
    files.put("intents/0", b"")
    assert made == [
        ("/ck/headgate", 0o700, True),
        ("/ck/headgate/intents", 0o700, True),
        {"permission": 0o600, "overwrite": False, "create_parent": True},
    ]


def test_an_empty_checkpoint_on_a_store_has_no_latest_step(cluster: FakeHdfs) -> None:
    assert Checkpoint(PLACE).latest() is None


def test_steps_that_a_list_lacks_are_looked_for(
    cluster: FakeHdfs, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkpoint = Checkpoint(PLACE)
    job, previous = checkpoint.open({}), None
    for step in range(3):
        made = Manifest(job, step, step, 0, {}, {}, {}, {}, previous=previous)
        previous = checkpoint.commit(made).digest
    for listed in ([], ["000000000000"]):
        reader = Checkpoint(PLACE)
        monkeypatch.setattr(reader.files, "names", lambda directory, found=listed: found)
        latest = reader.latest()
        assert latest is not None
        assert latest.step == 2


def test_a_name_node_that_never_answered_is_waited_for_less_long(
    cluster: FakeHdfs, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hdfs, "_GIVE_UP_S", 5.0)
    monkeypatch.setattr(hdfs, "_GIVE_UP_FIRST_S", 0.05)
    monkeypatch.setattr(hdfs, "_WAIT_MOST_S", 0.01)
    cluster.faults += [("get_file_info", AWAY)] * 10_000
    with pytest.raises(CheckpointError, match="HDFS cannot read"):
        on(cluster).exists("x")
    assert len(cluster.faults) > 9_900, "it was not asked for five seconds"
    # a worker's first call: its driver has had answers
    for files in (files_at(PLACE, "headgate", known=True), Checkpoint(PLACE, known=True).files):
        cluster.faults[:] = [("get_file_info", AWAY)] * 20
        assert not files.exists("x")


def test_a_name_node_that_stays_away_is_one_sentence(cluster: FakeHdfs) -> None:
    files = on(cluster)
    cluster.faults += [("create", AWAY)] * 10_000
    for write in (files.put, files.put_new):
        with pytest.raises(
            CheckpointError,
            match=r"^hdfs://node:8020/ck/headgate/x: HDFS cannot write .connection refused.; see",
        ):
            write("x", b"")


@pytest.mark.parametrize(
    ("said", "sentence"),
    [
        (
            'RPCError("org.apache.hadoop.security.AccessControlException", "Permission denied: '
            'user=eve, access=WRITE\\n\\tat org.apache...")',
            "HDFS refuses to write (Permission denied: user=eve, access=WRITE); give this user the "
            "right to.",
        ),
        (
            'RPCError("org.apache.hadoop.hdfs.protocol.DSQuotaExceededException", "The DiskSpace '
            'quota of /ck is exceeded")',
            "HDFS refuses to write (The DiskSpace quota of /ck is exceeded); raise the quota.",
        ),
        ("NoSASLMechanism", "get a Kerberos ticket or a delegation token."),
    ],
)
def test_what_hdfs_refuses_is_one_sentence(
    cluster: FakeHdfs, monkeypatch: pytest.MonkeyPatch, said: str, sentence: str
) -> None:
    def refuse(*_: object) -> None:
        raise RuntimeError(said)

    monkeypatch.setattr(cluster, "create", refuse)
    with pytest.raises(CheckpointError) as refused:
        Checkpoint(PLACE).open({"keys": 1})
    assert sentence in str(refused.value)
    assert cluster.files == {}


def test_a_cluster_where_a_rename_writes_over_another_file_is_refused(
    cluster: FakeHdfs, monkeypatch: pytest.MonkeyPatch
) -> None:
    rename = cluster.rename
    monkeypatch.setattr(
        cluster, "rename", lambda source, target, over: rename(source, target, True)
    )
    with pytest.raises(CheckpointError, match="lets one writer rename over another's file"):
        Checkpoint(PLACE).open({"keys": 1})
    assert cluster.files == {}


def test_the_client_reads_the_configuration_that_an_option_names(
    cluster: FakeHdfs, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[tuple[str, str | None]] = []

    def client(node: str, config_dir: str | None) -> FakeHdfs:
        asked.append((node, config_dir))
        return cluster

    monkeypatch.setattr(sys.modules["hdfs_native"], "Client", client)
    for options in ({"configDir": "/etc/hadoop"}, {}):
        files_at(PLACE, options=options).exists("x")
    assert asked == [("hdfs://node:8020", "/etc/hadoop"), ("hdfs://node:8020", None)]


def test_without_its_client_the_remedy_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    hdfs._client_of.cache_clear()
    monkeypatch.setitem(sys.modules, "hdfs_native", None)
    with pytest.raises(CheckpointError, match=r'pip install "\.\[hdfs\]"'):
        files_at(PLACE).exists("x")


# --- a real one ----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def real() -> Iterator[MiniHdfs]:
    if importlib.util.find_spec("hdfs_native") is None:
        pytest.skip("needs headgate[hdfs]")
    if not pyspark.__version__.startswith("4.3."):
        pytest.skip("the mini cluster was tried on the Hadoop of PySpark 4.3 only")
    try:
        made = MiniHdfs()
    except HeadgateError as error:
        pytest.skip(str(error))
    with made:
        yield made


@pytest.mark.slow
class TestHdfs(FilesContract):
    @pytest.fixture(autouse=True)
    def _of(self, real: MiniHdfs) -> None:
        self.url = real.url

    def open_files(self, directory: Path) -> Files:
        return files_at(f"{self.url}{directory}")


def manifest(job: str, step: int, previous: str | None, batch: int = 0) -> Manifest:
    return Manifest(job, step, batch, 0, {}, {"evict_us": 0}, {}, {}, previous=previous)


@pytest.mark.slow
def test_of_two_drivers_on_a_real_cluster_the_second_learns_who_was_first(real: MiniHdfs) -> None:
    mine, other = (Checkpoint(f"{real.url}/two") for _ in range(2))
    job = mine.open({"keys": 1})
    assert other.open({"keys": 1}) == job
    mine.commit(manifest(job, 0, None))
    with pytest.raises(CheckpointError, match=r"step 0 from another driver.*host .*process \d+"):
        other.commit(manifest(job, 0, None, batch=9))
    assert other.latest() == mine.latest()


@pytest.mark.slow
@pytest.mark.thorough
def test_a_real_cluster_that_is_paused_takes_each_commit_once(
    real: MiniHdfs, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hdfs, "_ANSWER_S", 1.0)
    mine, other = (files_at(f"{real.url}/paused") for _ in range(2))
    mine.put_new("manifests/0", b"mine")
    real.pause()
    late = threading.Thread(target=mine.put_new, args=("manifests/1", b"mine"))
    late.start()
    time.sleep(5.0)
    real.go_on()
    late.join(60.0)
    assert not late.is_alive()
    assert mine.get("manifests/1") == b"mine"
    with pytest.raises(FileExistsError):
        other.put_new("manifests/1", b"other")


@pytest.mark.slow
@pytest.mark.thorough
def test_a_real_cluster_that_is_killed_and_comes_back_loses_nothing(real: MiniHdfs) -> None:
    files = files_at(f"{real.url}/killed")
    written: list[int] = []
    stop = threading.Event()

    def write() -> None:
        while not stop.is_set():
            files.put_new(f"manifests/{len(written)}", b"x" * 1000)
            written.append(len(written))

    writer = threading.Thread(target=write)
    writer.start()
    try:
        time.sleep(1.0)
        real.kill()
        before = len(written)
        real.start()
        until = time.monotonic() + 60.0
        while len(written) < before + 20:
            assert time.monotonic() < until
            assert writer.is_alive()
            time.sleep(0.05)
    finally:
        stop.set()
        writer.join()
    assert before > 0
    assert {f"{n}" for n in written} <= set(files.names("manifests"))
    assert all(files.get(f"manifests/{n}") == b"x" * 1000 for n in written)
