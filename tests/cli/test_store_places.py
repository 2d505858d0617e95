"""The command line's view of a checkpoint on a store, by addresses and the environment alone."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest
from typer.testing import CliRunner

from headgate.checkpoint.checkpoint import Checkpoint
from headgate.checkpoint.command_files import CommandFiles
from headgate.checkpoint.manifest import Manifest
from headgate.checkpoint.shipping import piece
from headgate.cli.commands import app
from headgate_lab.testing import s3_server
from headgate_lab.testing.s3_server import BUCKET, FaultyS3

pytest.importorskip("obstore", reason="needs headgate[store]")

WHERE = f"s3://{BUCKET}/ck"


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch) -> Iterator[FaultyS3]:
    with s3_server.serving() as made:
        for name, text in made.environment.items():
            monkeypatch.setenv(name, text)
        yield made


def asked(*words: str) -> tuple[int, dict]:
    found = CliRunner().invoke(app, [*words, "--json"])
    return found.exit_code, json.loads(found.stdout.splitlines()[-1])


def test_what_is_there_is_said_and_what_is_not_too(store: FaultyS3) -> None:
    code, found = asked("inspect", WHERE)
    assert (code, found["error"]["message"]) == (
        2,
        f"checkpoint {WHERE} does not exist; give the checkpointLocation of a headgate query.",
    )
    assert asked("status", WHERE)[1] == found, "of a journal the same"
    checkpoint = Checkpoint(WHERE)
    job = checkpoint.open({"keys": 1})
    engine = {"spark": {"texts": {"offsets/0": "v1\n{}\n7"}, "objects": {}}}
    checkpoint.commit(Manifest(job, 0, 0, 0, {}, {"evict_us": 0}, {}, {}, engine=engine))
    code, found = asked("inspect", WHERE, "--verify")
    assert code == 0
    assert found["checkpoint"] == WHERE
    assert found["sound"]
    assert found["files"]["manifests"] == 1
    assert (
        found["restart"]["does"]
        == "deliver the output of step 0 again, unless the sink has it, then go on after step 0"
    )
    code, found = asked("status", WHERE)
    assert code == 2
    assert found["error"]["message"].startswith(f"checkpoint {WHERE} has no journal; give")
    store.objects[f"ck/headgate/{piece(0)}"] = b"{}\n"
    code, found = asked("status", WHERE)
    assert code == 2
    assert "line 1" in found["error"]["message"]


def test_a_query_is_asked_through_its_store(store: FaultyS3) -> None:
    checkpoint = Checkpoint(WHERE)
    checkpoint.open({"keys": 1})
    code, found = asked("freeze", WHERE, "--reason", "a look", "--wait", "100 ms")
    assert code == 1
    assert f"a query that starts on {WHERE} will freeze" in found["error"]["message"]
    files = CommandFiles(checkpoint.files)
    (request,) = files.pending()
    assert request.command is not None
    assert request.command.reason == "a look"
    files.write_answer(request.id, None)
    assert files.answer(request.id) is not None
    assert files.pending() == [request], "it is looked for every two seconds only"
    assert CommandFiles(checkpoint.files).pending() == []


def test_an_output_beside_a_store_must_be_named(store: FaultyS3) -> None:
    code, found = asked("run", "nexmark-q5", "--checkpoint", WHERE)
    assert code == 2
    assert found["error"]["message"].endswith("for the output; name one with --out.")
    without_key = CliRunner().invoke(app, ["run", "nexmark-q5", "--checkpoint", f"s3://{BUCKET}"])
    assert without_key.exit_code == 2
    assert "names no key in a bucket" in without_key.output
    assert store.requests == []
