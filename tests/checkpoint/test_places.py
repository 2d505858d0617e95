"""Files of a checkpoint on a disk and on a store, which may answer late, twice or not at all."""

from __future__ import annotations

import re
import stat
import threading
import time
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from headgate.checkpoint import objects
from headgate.checkpoint.checkpoint import Checkpoint
from headgate.checkpoint.manifest import Manifest, file_name
from headgate.checkpoint.objects import ObjectFiles
from headgate.checkpoint.place import Files, PosixFiles, files_at
from headgate.checkpoint.verify import problems
from headgate.core.errors import CheckpointError
from headgate.core.stores import OPTIONS, kind_of
from headgate_lab.testing import s3_server, servers
from headgate_lab.testing.files import FilesContract
from headgate_lab.testing.s3_server import BUCKET, FaultyS3, S3Fault

pytest.importorskip("obstore", reason="needs headgate[store]")


@pytest.fixture(scope="module")
def server() -> Iterator[FaultyS3]:
    with s3_server.serving() as store:
        yield store


@pytest.fixture
def store(server: FaultyS3) -> FaultyS3:
    server.objects.clear()
    server.faults.clear()
    server.late.clear()
    server.listed, server.conditional = None, True
    return server


def at(store: FaultyS3, where: str = "ck/headgate") -> Files:
    return files_at(f"s3://{BUCKET}/{where}", "", store.options)


class TestPosixFiles(FilesContract):
    def open_files(self, directory: Path) -> Files:
        return PosixFiles(directory)

    def test_they_are_their_owners_alone(self, files: Files, tmp_path: Path) -> None:
        files.put("output/one", b"")
        files.put_new("output/two", b"")
        root = tmp_path / "checkpoint" / "headgate"
        modes = {p.name: stat.S_IMODE(p.stat().st_mode) for p in [root, *root.rglob("*")]}
        assert modes == {"headgate": 0o700, "manifests": 0o700, "output": 0o700} | {
            "one": 0o600,
            "two": 0o600,
        }


class TestObjectFiles(FilesContract):
    @pytest.fixture(autouse=True)
    def _of(self, store: FaultyS3) -> None:
        self.store = store

    def open_files(self, directory: Path) -> Files:
        return at(self.store, f"{directory.parent.name}/headgate")


@pytest.mark.parametrize(
    "kind",
    [
        s3_server.LOST,
        s3_server.REFUSED_THOUGH_DONE,
        s3_server.CONFLICT,
        s3_server.BUSY,
        s3_server.TORN,
        s3_server.LATE,
    ],
)
def test_a_write_that_goes_wrong_is_made_once_and_known_as_ones_own(
    store: FaultyS3, kind: str
) -> None:
    files = at(store)
    store.faults.append(S3Fault(kind, part="manifests"))
    files.put_new("manifests/0", b"mine")
    assert not store.faults, "the fault happened"
    assert store.deliver() == [False] * (kind == s3_server.LATE), "what comes late comes too late"
    assert files.get("manifests/0") == b"mine"


@pytest.mark.parametrize("kind", [s3_server.LOST, s3_server.BUSY, s3_server.TORN, s3_server.LATE])
def test_a_write_is_made_once_where_the_library_gives_up(
    store: FaultyS3, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(objects, "_GIVE_UP", timedelta(0))
    files = at(store)
    store.faults.append(S3Fault(kind, part="manifests"))
    files.put_new("manifests/0", b"mine")
    assert not store.faults, "the fault happened"
    assert store.deliver() == [False] * (kind == s3_server.LATE)
    store.faults.append(S3Fault(kind, part="manifests", times=100))
    if kind == s3_server.LOST:
        files.put_new("manifests/1", b"mine")
    else:
        with pytest.raises(CheckpointError, match="the store cannot write"):
            files.put_new("manifests/1", b"mine")
        store.deliver()


def test_a_server_that_goes_away_for_longer_than_the_librarys_retries_is_waited_for() -> None:
    store = FaultyS3()
    server = s3_server.listening(store)
    server.RequestHandlerClass.protocol_version = "HTTP/1.0"  # no connection outlives it
    port = server.server_address[1]
    store.endpoint = f"http://127.0.0.1:{port}"
    files, servers_made = at(store), [server]
    files.put("first", b"there")

    def come_back() -> None:
        servers_made.append(s3_server.listening(store, port))

    server.shutdown()
    server.server_close()
    away = threading.Timer(8.0, come_back)
    away.start()
    try:
        files.put_new("manifests/0", b"mine")
        assert len(servers_made) == 2
        assert files.get("manifests/0") == b"mine"
    finally:
        away.join()
        servers_made[-1].shutdown()
        servers_made[-1].server_close()


def test_a_server_that_is_not_there_at_the_start_is_told_soon(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(objects, "_GIVE_UP_FIRST", timedelta(seconds=1))
    files = at(FaultyS3(endpoint=f"http://127.0.0.1:{servers.free_port()}"))
    began_s = time.monotonic()
    with pytest.raises(
        CheckpointError,
        match=r"nobody answers at 127.0.0.1:\d+ \(Connection refused\); see whether",
    ):
        files.check()
    assert time.monotonic() - began_s < 30.0


@pytest.mark.parametrize(
    "address",
    ["", "127.0.0.1:1", "http://", "http://h:99999", "http://h:x", "http://[::1", "http://h/a b",
     "http://h:1\x85", "ftp://h", "http://user:secret@h:x"],
)  # fmt: skip
@pytest.mark.parametrize("given", ["AWS_ENDPOINT_URL", "option"])
def test_an_address_that_is_no_url_is_refused_before_the_library_panics_over_it(
    monkeypatch: pytest.MonkeyPatch, address: str, given: str
) -> None:
    options = {"region": "r", "accessKeyId": "a", "secretAccessKey": "s"}
    if given == "option":
        options["endpoint"] = address
    else:
        monkeypatch.setenv(given, address)
    what = (
        f"{'option headgate.store.endpoint' if given == 'option' else f'the variable {given}'} is "
    )
    with pytest.raises(CheckpointError, match=re.escape(what)) as error:
        files_at("s3://b/k", "headgate", options).exists("x")
    assert "is no address; write it as https://host:port, or leave it out" in str(error.value)
    assert "secret" not in str(error.value)


def test_a_store_that_answered_the_driver_is_waited_for_by_who_asks_it_first(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(objects, "_GIVE_UP_FIRST", timedelta(seconds=0.2))
    port = servers.free_port()
    store = FaultyS3(endpoint=f"http://127.0.0.1:{port}")
    with pytest.raises(CheckpointError, match="nobody answers at"):
        at(store).exists("x")
    servers_made: list[Any] = []
    comes = threading.Timer(3.0, lambda: servers_made.append(s3_server.listening(store, port)))
    comes.start()
    try:
        worker = Checkpoint(f"s3://{BUCKET}/ck", store.options, known=True)
        assert not worker.files.exists("x")
    finally:
        comes.join()
        servers_made[-1].shutdown()
        servers_made[-1].server_close()


@pytest.mark.parametrize("kind", [s3_server.LOST, s3_server.CONFLICT, s3_server.LATE])
def test_a_write_that_goes_wrong_does_not_take_anothers_success_for_its_own(
    store: FaultyS3, kind: str
) -> None:
    files = at(store)
    files.put_new("manifests/0", b"another's")
    store.faults.append(S3Fault(kind, part="manifests"))
    with pytest.raises(FileExistsError):
        files.put_new("manifests/0", b"mine")
    store.deliver()
    assert files.get("manifests/0") == b"another's"


@pytest.mark.parametrize(
    ("break_it", "said"),
    [
        (lambda s: setattr(s, "conditional", False), "ignores If-None-Match"),
        (lambda s: s.faults.append(S3Fault(s3_server.FORBIDDEN)), "refuses to write .403 Access"),
        (lambda s: s.faults.append(S3Fault(s3_server.FORBIDDEN, "GET")), "refuses to read .403"),
        (lambda s: s.faults.append(S3Fault(s3_server.FORBIDDEN, "POST")), "refuses to remove .403"),
        (
            lambda s: s.faults.append(S3Fault(s3_server.EXPIRED)),
            "write .400 ExpiredToken.*other cred",
        ),
        (
            lambda s: s.faults.append(S3Fault(s3_server.ELSEWHERE, times=99)),
            "not in the region that was asked",
        ),
    ],
)
def test_a_store_that_cannot_hold_a_checkpoint_is_refused_at_the_start(
    store: FaultyS3, break_it: object, said: str
) -> None:
    break_it(store)  # type: ignore[operator]
    checkpoint = Checkpoint(f"s3://{BUCKET}/ck", store.options)
    with pytest.raises(CheckpointError, match=said) as refused:
        checkpoint.open({"keys": 1})
    assert "nothing" not in str(refused.value), "no credential is shown"
    assert not any("identity" in key for key in store.objects)


@pytest.mark.parametrize("kind", [s3_server.FORBIDDEN, s3_server.EXPIRED])
def test_credentials_that_end_in_the_middle_are_one_sentence_and_lose_nothing(
    store: FaultyS3, kind: str
) -> None:
    checkpoint = Checkpoint(f"s3://{BUCKET}/ck", store.options)
    job = checkpoint.open({"keys": 1})
    first = checkpoint.commit(manifest(job, 0, None))
    before = dict(store.objects)
    store.faults.append(S3Fault(kind, times=1000))
    writes = {
        "manifest": lambda: checkpoint.commit(manifest(job, 1, first.digest)),
        "intent": lambda: checkpoint.write_intent(1, {"step": 1}),
        "changelog": lambda: checkpoint.write_file("changelog", "x", b"1"),
    }
    for write in writes.values():
        with pytest.raises(
            CheckpointError, match=r"refuses to write .40[03] \w+.; give"
        ) as refused:
            write()
        assert str(refused.value).count(". ") == 0, "one sentence"
        assert "nothing" not in str(refused.value), "no credential is shown"
    assert store.objects == before
    store.faults.clear()
    assert checkpoint.commit(manifest(job, 1, first.digest)).step == 1, "and it goes on"


def test_a_bucket_that_is_not_there_is_named(store: FaultyS3) -> None:
    with pytest.raises(
        CheckpointError, match="s3://another/ck/headgate: its bucket does not exist"
    ):
        Checkpoint("s3://another/ck", store.options).open({"keys": 1})
    files = files_at("s3://another/ck", "", store.options)
    for act in (
        lambda: files.get("x"),
        lambda: files.get_range("x", 0, 1),
        lambda: files.put("x", b""),
        lambda: files.put_new("x", b""),
        lambda: files.names("y"),
    ):
        with pytest.raises(CheckpointError, match="its bucket does not exist"):
            act()


def test_a_store_without_credentials_says_so(
    store: FaultyS3, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "somebody")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY", raising=False)
    files = files_at(f"s3://{BUCKET}/ck", "", {"endpoint": store.endpoint})
    with pytest.raises(CheckpointError, match="no credentials"):
        files.get("x")


@pytest.mark.parametrize(
    ("said", "meant"),
    [
        (
            "Error performing token request: Server returned non-2xx status code: 403",
            "no credentials",
        ),
        ("Error performing PUT http://host/latest/api/token: status code: 403", "no credentials"),
        ("status code: 403 <Code>AccessDenied</Code> no credential", "refuses to read .403 Access"),
        ("Missing ETag", "cannot read .no answer"),
    ],
)
def test_what_the_library_says_is_told_from_what_the_store_says(said: str, meant: str) -> None:
    files = files_at("gs://b/ck", "", {})
    assert isinstance(files, ObjectFiles)
    assert re.search(meant, str(files._sentence("read", "x", OSError(said))))


@pytest.mark.parametrize(
    ("url", "name"),
    [
        (url, name)
        for url in ("s3://b/k", "gs://b/k", "abfss://c@account.dfs.core.windows.net/k")
        for name in OPTIONS[kind_of(url)]
    ],
)
def test_every_option_is_one_that_the_library_knows(url: str, name: str) -> None:
    values = {
        **dict.fromkeys(("useAzureCli", "skipSignature", "requestPayer", "s3Express"), "false"),
        **dict.fromkeys(("virtualHostedStyleRequest", "disableBulkDelete"), "false"),
        **dict.fromkeys(("endpoint", "baseUrl"), "https://localhost"),
        "serverSideEncryption": "AES256",
        "sasKey": "a=b",
        "timeout": "5s",
    }
    files = files_at(url, "", {name: values.get(name, "YWJj")})
    try:
        found = str(files._patient)  # type: ignore[attr-defined]
    except CheckpointError as error:  # half of a pair of keys, or a file that is not there
        found = str(error)
    assert re.search(r"^(S3|GCS|Azure)Store|has no credentials", found), found


def manifest(job: str, step: int, previous: str | None, batch: int = 0) -> Manifest:
    return Manifest(job, step, batch, 0, {}, {"evict_us": 0}, {}, {}, previous=previous)


def test_of_two_drivers_the_second_learns_who_was_first(store: FaultyS3) -> None:
    mine, other = (Checkpoint(f"s3://{BUCKET}/ck", store.options) for _ in range(2))
    job = mine.open({"keys": 1})
    assert other.open({"keys": 1}) == job
    first = mine.commit(manifest(job, 0, None))
    other.latest()
    mine.commit(manifest(job, 1, first.digest))
    with pytest.raises(CheckpointError, match=r"step 1 from another driver.*host .*process \d+"):
        other.commit(manifest(job, 1, first.digest, batch=9))
    assert other.latest() == mine.latest()


@pytest.mark.parametrize("on_store", [False, True], ids=["posix", "s3"])
def test_a_driver_that_wakes_late_finds_the_step_taken_though_it_is_garbage(
    store: FaultyS3, tmp_path: Path, on_store: bool
) -> None:
    where = f"s3://{BUCKET}/ck" if on_store else str(tmp_path / "ck")
    sleeper, other, third = (Checkpoint(where, store.options) for _ in range(3))
    job = sleeper.open({"keys": 1})
    began = sleeper.commit(manifest(job, 0, None))
    latest = other.latest()
    assert latest is not None
    for driver, steps in ((other, range(1, 9)), (third, range(9, 20))):
        driver.latest()
        for step in steps:
            latest = driver.commit(manifest(job, step, latest.digest))
            driver.collect_garbage(latest)
    assert third.steps() == [0, 1, 9, 18, 19]
    with pytest.raises(CheckpointError, match=r"step 1 from another driver already \(host"):
        sleeper.commit(manifest(job, 1, began.digest, batch=7))
    with pytest.raises(CheckpointError, match=r"step 1 from another driver"):
        sleeper.refuse_after_another(0)
    assert not problems(Checkpoint(where, store.options))


def test_a_commit_whose_answer_is_lost_is_a_commit(store: FaultyS3) -> None:
    checkpoint = Checkpoint(f"s3://{BUCKET}/ck", store.options)
    job = checkpoint.open({"keys": 1})
    store.faults.append(S3Fault(s3_server.LOST, part="manifests"))
    checkpoint.commit(manifest(job, 0, None))
    assert checkpoint.steps() == [0]


def test_the_newest_step_is_found_though_a_list_lacks_it(store: FaultyS3) -> None:
    checkpoint = Checkpoint(f"s3://{BUCKET}/ck", store.options)
    job = checkpoint.open({"keys": 1})
    previous = None
    for step in range(3):
        previous = checkpoint.commit(manifest(job, step, previous)).digest
        if step == 0:
            store.listed = dict(store.objects)
    latest = Checkpoint(f"s3://{BUCKET}/ck", store.options).latest()
    assert latest is not None
    assert latest.step == 2


def test_a_manifest_that_was_altered_on_the_store_is_refused(store: FaultyS3) -> None:
    checkpoint = Checkpoint(f"s3://{BUCKET}/ck", store.options)
    checkpoint.commit(manifest(checkpoint.open({"keys": 1}), 0, None))
    key = f"ck/headgate/manifests/{file_name(0)}"
    store.objects[key] = store.objects[key].replace(b'"step":0', b'"step":1')
    with pytest.raises(CheckpointError, match=f"s3://{BUCKET}/{key} is damaged"):
        Checkpoint(f"s3://{BUCKET}/ck", store.options).latest()
    assert problems(Checkpoint(f"s3://{BUCKET}/ck", store.options))


def test_a_plain_spark_checkpoint_on_a_store_is_refused(store: FaultyS3) -> None:
    store.objects["ck/metadata"] = b"{}"
    with pytest.raises(CheckpointError, match="plain Spark"):
        Checkpoint(f"s3://{BUCKET}/ck", store.options).open({"keys": 1})


def test_a_store_that_has_answered_once_is_known(store: FaultyS3) -> None:
    files = files_at(f"s3://{BUCKET}/ck", "", store.options)
    assert not files._known
    files.put("x", b"")
    assert files._known
    assert files_at(f"s3://{BUCKET}/ck", "", store.options, known=True)._known


def test_between_two_tries_of_a_write_that_is_refused_more_and_more_time_passes(
    store: FaultyS3, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = files_at(f"s3://{BUCKET}/ck", "", store.options)
    tries: list[str] = []

    def refuse(name: str, data: bytes) -> None:
        tries.append(name)
        raise FileExistsError(name)

    slept: list[float] = []
    monkeypatch.setattr(files, "_create", refuse)
    monkeypatch.setattr(objects.time, "sleep", slept.append)
    monkeypatch.setattr(objects.random, "uniform", lambda low, high: high - low)
    with pytest.raises(CheckpointError, match="each try was refused, and nothing is there"):
        files.put_new("x", b"mine")
    assert len(tries) == len(slept) == objects._TRIES
    assert slept == [objects._WAIT_S * 2**n for n in range(objects._TRIES)]
