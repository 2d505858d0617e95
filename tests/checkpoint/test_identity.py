"""Whose state a checkpoint holds: what means something else is refused, in the user's words."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest

from headgate.checkpoint import identity
from headgate.checkpoint.checkpoint import Checkpoint
from headgate.checkpoint.identity import refuse_another
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


def test_exact_texts_are_compared_where_both_have_them(tmp_path: Path) -> None:
    operators = {"aggregate-0": AGGREGATE}

    def query(exact: dict[str, Any]) -> dict[str, Any]:
        return changed("meaning", to={"version": 1, "operators": operators, "exact": exact})

    renamed = {"aggregate-0": {**AGGREGATE, "aggregates": ["sum(v | w)"]}}
    Checkpoint(tmp_path / "earlier").open(IDENTITY)
    Checkpoint(tmp_path / "earlier").open(query(renamed))  # an earlier release wrote no exact texts
    for number, (old, new) in enumerate([({}, renamed), (renamed, {})]):
        place = tmp_path / str(number)
        Checkpoint(place).open(query(old))
        with pytest.raises(CheckpointError, match=r"`sum\(v \| w\)`"):
            Checkpoint(place).open(query(new))


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


def layouts(field: str, value: Any, operators: int = 1) -> dict[str, Any]:
    """Return the identity, as earlier releases wrote it, of operators whose layout has one part."""
    names = [f"operator-{number}" for number in range(operators)]
    part = {} if value is None else {field: value}
    return {"operators": {key: {"same": 1} for key in names} | {names[-1]: part | {"same": 1}}}


@pytest.mark.parametrize(
    ("field", "was", "now", "words"),
    [
        ("keep_us", 2_500_000, 0, "time that a key is remembered: was `2.5 s`, now 0"),
        ("delay_us", 1_000_000, 2_000_000, "delay_us: was `1 s`, now `2 s`"),
        ("time_mode", "NONE", "EVENT", "time mode: was `NONE`, now `EVENT`"),
        ("time", [0, 0, 0], [5_000_000] * 2 + [0], "window: was `event time`, now `window of 5 s`"),
        (
            "time",
            [4_000_000, 4_000_000, 1_000_000],
            [4_000_000, 2_000_000, 0],
            "window: was `window of 4 s / 4 s / 1 s`, now `window of 4 s / 2 s / 0 s`",
        ),
        (
            "kept",
            [["FIRST", [[4, 0]]]],
            [],
            "kept: was `first(sketch)`, now none",
        ),
        (
            "sides",
            [[[0, 0]], [[1, 0], [2, 3]]],
            None,
            "sides: was `1 columns (whole number or time)`, "
            "`2 columns (floating-point number, decimal (3 digits))`, now none",
        ),
        ("comparisons", [["b", 1], ["a", 2]], [["a", 3]], "was `a`, 2, `b`, 1, now `a`, 3"),
        ("comparisons", [["a", 2]], None, "comparisons: was `a`, 2, now none"),
        ("other", {"a": 1}, {"a": 2}, 'other: was `{"a": 1}`, now `{"a": 2}`'),
    ],
)
def test_a_layout_is_said_in_words(field: str, was: Any, now: Any, words: str) -> None:
    for operators, place in ((1, ""), (2, " of operator-1")):
        with pytest.raises(CheckpointError) as raised:
            refuse_another(layouts(field, was, operators), layouts(field, now, operators), "/place")
        head, _, tail = words.rpartition(": was ")
        assert (f"{head}{place}: was {tail}" if head else words) in str(raised.value)


def test_the_order_of_comparisons_means_nothing() -> None:
    one, other = [["b", 1], ["a", 2]], [["a", 2], ["b", 1]]
    refuse_another(layouts("comparisons", one), layouts("comparisons", other), "/place")
    with pytest.raises(CheckpointError, match="others: was `b`, `a`, now `a`, `b`"):
        refuse_another(layouts("others", ["b", "a"]), layouts("others", ["a", "b"]), "/place")


def test_names_of_keys_count_where_there_is_no_meaning() -> None:
    with pytest.raises(CheckpointError, match="keys: was `k`, now `key`"):
        refuse_another(layouts("keys", ["k"]), layouts("keys", ["key"]), "/place")


@pytest.mark.parametrize("there", [{"operators": {"a": {}}}, {"stages": {"a": {"fields": []}}}])
def test_parts_that_only_one_query_has_are_named(there: dict[str, Any]) -> None:
    (name,) = there
    word = {"operators": "stateful operators", "stages": "stages"}[name]
    with pytest.raises(CheckpointError, match=f"{word}: was `a`, now none"):
        refuse_another(there, {}, "/place")
    with pytest.raises(CheckpointError, match=f"{word}: was none, now `a`"):
        refuse_another({}, there, "/place")


@pytest.mark.parametrize(
    ("state", "words"),
    [
        ([[], [["value", "int64"]], False, False], "value of value int64"),
        ([[["at", "int64"]], [["value", "string"]], False, False], "map of at int64, value string"),
        ([[["at", "int64"]], [], True, False], "list of at int64"),
        ([[], [["v", "int64"]], False, True], "value of v int64, with a time to live"),
    ],
)
def test_a_state_is_said_in_words(state: list[Any], words: str) -> None:
    was = layouts("states", {"seen": state}, 2)
    now = layouts("states", {"seen": [[], [["other", "int64"]], False, False]}, 2)
    with pytest.raises(CheckpointError, match=f"state seen: was `{words}`, now `value of other"):
        refuse_another(was, now, "/place")
    with pytest.raises(CheckpointError, match="states of operator-1: was `seen`, now none"):
        refuse_another(was, layouts("states", None, 2), "/place")


@pytest.mark.parametrize(
    ("was", "now", "words"),
    [
        (["a", "b"], ["a", "c"], "was `b`, now `c`"),
        (["a", "b"], ["b", "a"], "was `a`, `b`, now `b`, `a`"),
        (["a", "b"], ["a", "b", "c"], "was `a`, `b`, now `a`, `b`, `c`"),
        (["a"], "a", "was `a`, now `a`"),
    ],
)
def test_of_lists_that_differ_in_some_entries_only_those_are_named(
    was: Any, now: Any, words: str
) -> None:
    def identity(value: Any) -> dict[str, Any]:
        return {"meaning": {"version": 1, "operators": {"aggregate-0": {"field": value}}}}

    with pytest.raises(CheckpointError, match=f"field: {words}"):
        refuse_another(identity(was), identity(now), "/place")


def test_operators_that_only_one_meaning_has_are_named() -> None:
    def identity(*names: str) -> dict[str, Any]:
        return {"meaning": {"version": 1, "operators": {name: {} for name in names}}}

    with pytest.raises(CheckpointError, match="operators: was `a`, `b`, now `a`"):
        refuse_another(identity("b", "a"), identity("a"), "/place")


@pytest.mark.parametrize("field", [identity.ARGUMENTS, identity.BRANCHES, identity.CONSTANTS])
def test_a_field_that_an_older_meaning_lacks_is_not_compared_with_it(
    tmp_path: Path, field: str
) -> None:
    fuller = changed(*MEANT, field, to="as it is")
    Checkpoint(tmp_path / "old").open(IDENTITY)
    Checkpoint(tmp_path / "old").open(fuller)
    Checkpoint(tmp_path / "new").open(fuller)
    with pytest.raises(CheckpointError, match=f"{field}: was `as it is`, now `otherwise`"):
        Checkpoint(tmp_path / "new").open(changed(*MEANT, field, to="otherwise"))


def test_a_name_in_another_case_is_the_same_where_the_session_says_so(tmp_path: Path) -> None:
    """Spark writes a column as the user did, not as the source has it."""
    calls = ["SUM(V)", "max(w)", "count_if(s = 'it\\'s a')"]
    Checkpoint(tmp_path).open(changed(*MEANT, "aggregates", to=calls))
    spelt = changed(*MEANT, "aggregates", to=["sum(v)", "max(W)", "COUNT_IF(S = 'it\\'s a')"])
    Checkpoint(tmp_path).open(spelt)
    spelt["meaning"]["case"] = True
    with pytest.raises(CheckpointError, match=r"was `SUM\(V\)`, "):
        Checkpoint(tmp_path).open(spelt)
    text = changed(*MEANT, "aggregates", to=[*calls[:2], "count_if(s = 'it\\'s A')"])
    with pytest.raises(CheckpointError, match="aggregates: was `count_if"):
        Checkpoint(tmp_path).open(text)


def test_another_time_mode_is_named_and_not_the_timers_that_come_with_it() -> None:
    state = [[], [["n", "int64"]], False, False]
    was = {"states": {"n": state}, "time_mode": "None"}
    now = {"states": {"": state, "n": state}, "time_mode": "ProcessingTime"}
    identities = ({"operators": {"processor-0": layout}} for layout in (was, now))
    with pytest.raises(CheckpointError, match="time mode: was `None`, now `ProcessingTime`"):
        refuse_another(*identities, "/place")
