"""Whose state a checkpoint holds: what means something else is refused, in the user's words."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest

from headgate.checkpoint.checkpoint import Checkpoint
from headgate.checkpoint.verify import problems
from headgate.core.errors import CheckpointError

AGGREGATE: dict[str, Any] = {
    "keys": ["k", "s"],
    "window": "session_window(at, '3 s')",
    "aggregates": ["sum(v)", "max(w)", "count(1)"],
}
LAYOUT: dict[str, Any] = {
    "keys": ["k", "s"],
    "kinds": [[0, 0], [3, 0]],
    "time": [3_000_000, 3_000_000, 0],
    "aggregates": [["MAX", [[0, 0]]], ["SUM_DECIMAL", [[2, 4], [0, 0]]]],
}
IDENTITY: dict[str, Any] = {
    "key_groups": 8,
    "mode": "append",
    "operators": {"aggregate-0": LAYOUT},
    "meaning": {"version": 1, "operators": {"aggregate-0": AGGREGATE}},
}


def changed(*path: str, to: Any) -> dict[str, Any]:
    """Return the identity of a query of which one part is another."""
    made = copy.deepcopy(IDENTITY)
    part = made
    for name in path[:-1]:
        part = part[name]
    part[path[-1]] = to
    return made


def without_meaning() -> dict[str, Any]:
    """Return an identity as earlier releases wrote it."""
    return {name: part for name, part in IDENTITY.items() if name != "meaning"}


MEANT = ("meaning", "operators", "aggregate-0")
LIES = ("operators", "aggregate-0")
OTHERS = [
    (
        changed(*MEANT, "window", to="window(at, '10 s')"),
        "window: was `session_window(at, '3 s')`, now `window(at, '10 s')`",
    ),
    (changed(*MEANT, "window", to=""), "window: was `session_window(at, '3 s')`, now none"),
    (
        changed(*MEANT, "aggregates", to=["sum(w)", "max(w)", "count(1)"]),
        "aggregates: was `sum(v)`, now `sum(w)`",
    ),
    (
        changed(*MEANT, "aggregates", to=["max(w)", "sum(v)", "count(1)"]),
        "aggregates: was `sum(v)`, `max(w)`, `count(1)`, now `max(w)`, `sum(v)`, `count(1)`",
    ),
    (changed(*MEANT, "keys", to=["k"]), "keys: was `k`, `s`, now `k`"),
    (
        changed(*MEANT, "lookups", to=["inner join on k = static.k"]),
        "lookups: was none, now `inner",
    ),
    (
        changed("meaning", "operators", to={"join-0": {}}),
        "stateful operators: was `aggregate-0`, now `join-0`",
    ),
    (changed("mode", to="update"), "output mode: was `append`, now `update`"),
    (changed("key_groups", to=16), "key groups: was 8, now 16"),
    (
        changed(*LIES, "kinds", to=[[1, 0], [3, 0]]),
        "types of the keys: was `whole number or time`, `text or bytes`, now `floating-point number`",
    ),
    (
        changed(*LIES, "aggregates", to=[["MAX", [[1, 0]]]]),
        "was `max(whole number or time)`, `sum_decimal(decimal (4 digits), whole number or time)`",
    ),
]


@pytest.mark.parametrize(("query", "words"), OTHERS, ids=[words for _, words in OTHERS])
def test_another_meaning_is_refused_with_both_in_the_users_words(
    tmp_path: Path, query: dict[str, Any], words: str
) -> None:
    Checkpoint(tmp_path).open(IDENTITY)
    with pytest.raises(CheckpointError) as raised:
        Checkpoint(tmp_path).open(query)
    said = str(raised.value)
    assert words in said
    assert said.startswith(f"checkpoint {tmp_path} belongs to another query (")
    assert said.endswith("start the query as it was, or use a new checkpointLocation.")


def test_the_operator_is_named_where_there_are_several(tmp_path: Path) -> None:
    two = {"aggregate-0": AGGREGATE, "aggregate-1": {**AGGREGATE, "keys": ["s"]}}
    Checkpoint(tmp_path).open(changed("meaning", "operators", to=two))
    other = {**two, "aggregate-1": {**AGGREGATE, "keys": ["k"]}}
    with pytest.raises(CheckpointError, match="keys of aggregate-1: was `s`, now `k`"):
        Checkpoint(tmp_path).open(changed("meaning", "operators", to=other))


def test_other_names_of_keys_are_no_other_query(tmp_path: Path) -> None:
    Checkpoint(tmp_path).open(IDENTITY)
    Checkpoint(tmp_path).open(changed(*LIES, "keys", to=["key", "s"]))


def test_texts_of_another_version_are_not_compared(tmp_path: Path) -> None:
    Checkpoint(tmp_path).open(IDENTITY)
    other = {
        "version": 2,
        "operators": {"aggregate-0": {**AGGREGATE, "keys": ["worded otherwise"]}},
    }
    Checkpoint(tmp_path).open(changed("meaning", to=other))
    with pytest.raises(CheckpointError, match="types of the keys"):
        Checkpoint(tmp_path).open({**changed(*LIES, "kinds", to=[]), "meaning": other})


def test_an_old_checkpoint_takes_the_meaning_of_the_query_that_goes_on(tmp_path: Path) -> None:
    job = Checkpoint(tmp_path).open(without_meaning())
    with pytest.raises(
        CheckpointError, match="window: was `window of 3 s`, now `window of 3 s / 1 s"
    ):
        Checkpoint(tmp_path).open(changed(*LIES, "time", to=[3_000_000, 1_000_000, 0]))
    assert not (tmp_path / "headgate" / "meaning.json").exists()
    assert Checkpoint(tmp_path).open(IDENTITY) == job
    assert Checkpoint(tmp_path).open(IDENTITY) == job
    with pytest.raises(CheckpointError, match=r"was `sum\(v\)`, now `sum\(w\)`"):
        Checkpoint(tmp_path).open(
            changed(*MEANT, "aggregates", to=["sum(w)", "max(w)", "count(1)"])
        )


def test_a_damaged_meaning_is_named(tmp_path: Path) -> None:
    Checkpoint(tmp_path).open(without_meaning())
    Checkpoint(tmp_path).open(IDENTITY)
    file = tmp_path / "headgate" / "meaning.json"
    file.write_bytes(file.read_bytes().replace(b"sum(v)", b"sum(w)"))
    with pytest.raises(CheckpointError, match=r"meaning\.json"):
        Checkpoint(tmp_path).open(IDENTITY)
    (problem,) = problems(Checkpoint(tmp_path))
    assert "meaning.json" in problem


def test_states_of_a_processor_are_said_by_name(tmp_path: Path) -> None:
    def query(kind: str, **more: Any) -> dict[str, Any]:
        states = {"count": [[], [["value", kind]], False, False], **more}
        return {"operators": {"processor-0": {"time_mode": "NONE", "states": states}}}

    Checkpoint(tmp_path).open(query("int64"))
    words = "state count: was `value of value int64`, now `value of value string`"
    with pytest.raises(CheckpointError, match=words):
        Checkpoint(tmp_path).open(query("string"))
    with pytest.raises(CheckpointError, match="states: was `count`, now `count`, `seen`"):
        Checkpoint(tmp_path).open(query("int64", seen=[[["at", "int64"]], [], True, True]))


def test_columns_of_stages_are_said_by_name(tmp_path: Path) -> None:
    def query(kind: str) -> dict[str, Any]:
        fields = [{"name": "v", "type": kind, "nullable": True, "metadata": {}}]
        return {"stages": {"map-0": {"type": "struct", "fields": fields}}}

    Checkpoint(tmp_path).open(query("long"))
    with pytest.raises(
        CheckpointError, match='columns of stage map-0: was `v "long"`, now `v "int"`'
    ):
        Checkpoint(tmp_path).open(query("int"))
