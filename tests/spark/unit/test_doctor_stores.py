"""Whether a host can use a checkpoint's store, and what is said where it cannot."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest

from headgate.spark.cluster.doctor import Needs, judge
from headgate.spark.cluster.host_facts import collect_facts
from headgate.spark.cluster.store_mark import marked_store
from headgate_lab.testing import s3_server
from headgate_lab.testing.s3_server import BUCKET, FaultyS3, S3Fault

pytest.importorskip("obstore", reason="needs headgate[store]")

PLACE = f"s3://{BUCKET}/ck"


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch) -> Iterator[FaultyS3]:
    with s3_server.serving() as made:
        for name, text in made.environment.items():
            monkeypatch.setenv(name, text)
        yield made


def test_a_store_that_driver_and_worker_can_use_is_no_problem_and_nothing_stays(
    store: FaultyS3,
) -> None:
    with marked_store(PLACE) as (mark, problems):
        assert problems == []
        facts = collect_facts(mark)
        assert (facts.store_problem, facts.checkpoint_problem) == (None, None)
        assert len(store.objects) == 1
    assert store.objects == {}


def test_a_worker_without_the_right_to_write_is_named_with_the_remedy(store: FaultyS3) -> None:
    with marked_store(PLACE) as (mark, _):
        store.faults.append(S3Fault(s3_server.FORBIDDEN))
        facts = collect_facts(mark)
    sound = replace(facts, store_problem=None)
    (text,) = set(judge(facts, 0.0, facts, Needs(1))) - set(judge(sound, 0.0, sound, Needs(1)))
    assert text.startswith(f"executor {facts.executor} on {facts.host} cannot use the checkpoint's")
    assert "refuses to write (403 AccessDenied); give this user the right to" in text
    assert text.count(". ") == 0, "one sentence"


def test_a_store_that_the_driver_cannot_use_is_told_before_any_worker_looks(
    store: FaultyS3,
) -> None:
    store.conditional = False
    with marked_store(PLACE) as (mark, problems):
        assert mark is None
        assert "ignores If-None-Match" in problems[0]
    assert store.objects == {}
