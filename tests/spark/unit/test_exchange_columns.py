"""Checks the columns and plans that route rows to slots; columns are only said, without Spark."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from made_plans import Made, attribute, plain_seq
from said_columns import F, Frame, Said

from headgate.core.assignment import Assignment
from headgate.operators.spec import TimeKey
from headgate.spark.step import exchange

SPARK: Any = "spark"
GROUPS = 8


@pytest.fixture(autouse=True)
def said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exchange, "F", F)
    monkeypatch.setattr(exchange, "of_rows", lambda _, plan: Frame(f"rows of {plan}"))
    monkeypatch.setattr(exchange, "without_constraints", lambda frame: Said(f"hidden({frame})"))
    monkeypatch.setattr(exchange, "seq", plain_seq)
    monkeypatch.setattr(exchange, "column", lambda _, value: Said(value.name()))


def routed(prefix: str, *values: str) -> list[Any]:
    return [SimpleNamespace(name=f"{prefix}{n}", value=Said(v)) for n, v in enumerate(values)]


def operator(
    keys: tuple[str, ...] = ("a", "b"),
    values: tuple[str, ...] = ("x",),
    start: str | None = None,
    time: TimeKey | None = None,
    **more: Any,
) -> Any:
    facts: dict[str, Any] = {
        "id": "count-0", "arrival": None, "initial": None, "input_plan": "input", "parents": (),
    }  # fmt: skip
    return SimpleNamespace(
        keys=routed("k", *keys), values=routed("v", *values), spec=SimpleNamespace(time=time),
        slice_start=None if start is None else Said(start), **{**facts, **more},
    )  # fmt: skip


def columns(operator: Any) -> dict[str, str]:
    found = exchange.routed_columns(operator, GROUPS)
    return {name: str(value) for name, value in found.items()}


def test_a_record_has_a_key_group_keys_values_and_a_count() -> None:
    found = columns(operator())
    assert list(found.items()) == [
        ("g", "pmod(xxhash64(a, b), 8).cast(int)"), ("k0", "a"), ("k1", "b"), ("v0", "x"),
        ("n", "1.cast(bigint)"),
    ]  # fmt: skip


def test_a_record_has_its_slice_and_its_arrival_in_milliseconds_if_they_are_known() -> None:
    found = columns(operator(start="start", arrival=Said("came"), time=TimeKey(4, 2)))
    assert list(found) == ["g", "t", "k0", "k1", "v0", "n", "a0", "a1"]
    assert (found["t"], found["a0"], found["a1"]) == (
        "start",
        *["(unix_micros(came) / 1000.0)"] * 2,
    )
    assert found["g"] == "pmod(xxhash64(a, b), 8).cast(int)"


@pytest.mark.parametrize(
    ("time", "group"),
    [
        (TimeKey(10, 10), "pmod(xxhash64(start), 8).cast(int)"),
        (TimeKey(0, 1), "pmod(xxhash64(start), 8).cast(int)"),
        (TimeKey(10, 5), "0"),
        (TimeKey(10, 10, session=True), "0"),
        (None, "0"),
    ],
)
def test_without_keys_only_windows_that_never_share_records_are_spread(
    time: TimeKey | None, group: str
) -> None:
    assert columns(operator((), start="start", time=time))["g"] == group


def test_without_keys_and_time_there_is_one_key_group() -> None:
    assert columns(operator((), time=TimeKey(10, 10)))["g"] == "0"


def query(*sources: Any) -> Any:
    return SimpleNamespace(operators=list(sources), sources=[[one] for one in sources], plan="own")


def test_a_query_without_operators_is_read_as_it_is() -> None:
    assert str(exchange.streaming_input(SPARK, query(), GROUPS)) == "rows of own"


def test_the_columns_of_several_chains_have_a_prefix_and_those_of_one_have_none() -> None:
    one = operator(("a",))
    text = str(exchange.streaming_input(SPARK, query(one), GROUPS))
    assert text.startswith(
        "rows of input.select(pmod(xxhash64(a), 8).cast(int).alias(g), a.alias(k0)"
    )
    others = [operator(("a",), id=f"op-{n}", input_plan=f"in{n}") for n in range(3)]
    text = str(exchange.streaming_input(SPARK, query(*others), GROUPS))
    first, second, third = text.split(".unionByName(")
    assert first.startswith("rows of in0.select(")
    assert first.endswith("x.alias(op-0:v0), 1.cast(bigint).alias(op-0:n))")
    assert second.startswith("rows of in1.select(")
    assert third.startswith("rows of in2.select(")
    assert second.endswith("alias(op-1:n)), allowMissingColumns=True)")
    assert third.endswith("alias(op-2:n)), allowMissingColumns=True)")


@pytest.mark.parametrize(("values", "hidden"), [(5, False), (6, True)])
def test_constraints_are_hidden_from_catalyst_above_eight_columns(
    values: int, hidden: bool
) -> None:
    one = operator(("a",), tuple("uvwxyz"[:values]))
    assert len(columns(one)) == values + 3
    text = str(exchange.streaming_input(SPARK, query(one), GROUPS))
    assert text.startswith("hidden(rows of input") is hidden


def test_a_tick_is_a_row_of_nulls() -> None:
    fields = [SimpleNamespace(name=name, dataType=f"type of {name}") for name in ("g", "n")]
    frame: Any = Said("stream", schema=SimpleNamespace(fields=fields))
    ticks: Any = Said("ticks")
    assert str(exchange.with_ticks(frame, ticks)) == (
        "stream.unionByName(ticks.select(None.cast(type of g).alias(g), "
        "None.cast(type of n).alias(n)))"
    )


def test_the_rows_of_an_initial_state_are_marked_and_follow_the_first_batch() -> None:
    frame: Any = Said("batch", sparkSession=SPARK)
    assert exchange.with_initial(frame, operator(), GROUPS) is frame
    initial = SimpleNamespace(keys=routed("k", "i"), values=routed("v", "j"), plan="state")
    text = str(exchange.with_initial(frame, operator(initial=initial), GROUPS))
    assert text == (
        "batch.unionByName(rows of state.select(pmod(xxhash64(i), 8).cast(int).alias(g), "
        "i.alias(k0), j.alias(v0), True.alias(i)), allowMissingColumns=True)"
    )


def test_a_chain_takes_its_own_rows_and_columns_of_a_batch() -> None:
    names = ["op:g", "op:k0", "op-1:g", "op-1:v0"]
    batch: Any = Frame("batch", **dict.fromkeys(names))
    one = operator(id="op")
    assert exchange.chain_input(batch, one, alone=True) is batch
    assert str(exchange.chain_input(batch, one, alone=False)) == (
        "batch.where(`op:g`.isNotNull()).select(`op:g`.alias(g), `op:k0`.alias(k0))"
    )


OWNERS = "element_at(array(2,0,2), g + 1)"


def test_a_row_goes_to_the_owner_of_its_key_group() -> None:
    frame: Any = Frame("rows", g=0, n=0)
    whole = Assignment((2, 0, 2), 3)
    assert str(exchange.slot_column(whole)) == OWNERS
    text = str(exchange.to_slots(frame, whole, shared=False))
    assert text == f"rows.repartitionById(3, {OWNERS})"


def test_a_marker_goes_to_the_slot_that_it_names() -> None:
    frame: Any = Frame("rows", g=0, m_to=0)
    text = str(exchange.to_slots(frame, Assignment((2, 0, 2), 3), shared=False))
    assert text == f"rows.repartitionById(3, coalesce(m_to, {OWNERS}))"


def test_a_row_of_a_split_key_group_goes_to_one_of_its_slots_by_its_position() -> None:
    split = Assignment((2, 0, 2), 3, split={0: (2, 1)})
    share = "pmod(xxhash64(monotonically_increasing_id()), 2).cast(int)"
    drawn = f"when((g = 0), element_at(array(2, 1), ({share} + 1))).otherwise({OWNERS})"
    assert str(exchange.slot_column(split)) == drawn
    frame: Any = Frame("rows", g=0)
    text = str(exchange.to_slots(frame, split, shared=False))
    assert text == f"rows.withColumn(route, {drawn}).repartitionById(3, route).drop(route)"


def test_a_shared_record_goes_to_all_slots_and_counts_at_one() -> None:
    frame: Any = Frame("rows", g=0, n=0)
    text = str(exchange.to_slots(frame, Assignment((1, 0, 1), 2), shared=True))
    group = "pmod(xxhash64(monotonically_increasing_id(), g, n), 3).cast(int)"
    assert text == (
        f"rows.withColumn(g, {group}).withColumn(copy_for, explode(array(0, 1)))"
        ".withColumn(n, when((element_at(array(1,0,1), g + 1) = copy_for), n).otherwise(0))"
        ".repartitionById(2, copy_for).drop(copy_for)"
    )


def test_an_operator_that_is_fed_reads_the_output_of_all_its_parents(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(exchange, "without_watermarks", lambda _, plan: f"{plan}, no watermark")
    monkeypatch.setattr(
        exchange, "replace_leaf", lambda _, plan, old, new: f"{plan}; {old} -> {new}"
    )
    parents = [SimpleNamespace(id=name, placeholder=f"place of {name}") for name in ("p", "q")]
    put_out: Any = {"q": "rows of q", "p": "rows of p"}
    fed = operator(("a",), parents=tuple(parents))
    assert str(exchange.fed_input(SPARK, fed, put_out, GROUPS)) == (
        "rows of input, no watermark; place of p -> rows of p; place of q -> rows of q.select("
        "pmod(xxhash64(a), 8).cast(int).alias(g), a.alias(k0), x.alias(v0), 1.cast(bigint).alias(n))"
    )


# --- Marker rows ----------------------------------------------------------------------------------------


@pytest.fixture
def markers(monkeypatch: pytest.MonkeyPatch) -> list[Made]:
    monkeypatch.setattr(
        exchange, "null_where_present", lambda _, marker, e: Said(f"guarded {e.sql()}")
    )
    monkeypatch.setattr(exchange, "present_or", lambda _, marker, e: f"{marker.sql()} or {e.sql()}")
    monkeypatch.setattr(
        exchange,
        "project",
        lambda _, expressions, below: (
            "project", [one if isinstance(one, str) else one.sql() for one in expressions], below
        ),
    )  # fmt: skip
    monkeypatch.setattr(
        exchange, "filtered", lambda _, condition, below: ("filter", condition, below)
    )
    return [attribute("m_to"), attribute("m_token")]


def test_only_a_computed_expression_is_left_out_for_a_marker(markers: list[Made]) -> None:
    plain = attribute("x")
    assert exchange.unless_marker(SPARK, plain, markers[0]) is plain
    guarded = exchange.unless_marker(SPARK, Made("Alias", plain), markers[0])
    assert [str(child) for child in guarded.children()] == ["guarded x"]


def test_markers_pass_projections_filters_and_plans_that_only_describe(
    markers: list[Made],
) -> None:
    old, new = Made("Leaf"), Made("Leaf")
    condition, named = attribute("c"), attribute("x")
    plan = Made(
        "Project",
        Made("SubqueryAlias", Made("Filter", old, condition=condition)),
        projectList=[named],
    )
    found: Any = exchange._with_markers(SPARK, plan, old, new, markers)
    assert found == ("project", ["x", "m_to", "m_token"], ("filter", "m_to or c", new))
    assert exchange._with_markers(SPARK, old, old, new, markers) is new


def test_a_relay_computes_nothing_for_a_marker_and_passes_its_columns(
    monkeypatch: pytest.MonkeyPatch, markers: list[Made]
) -> None:
    empty = Made("LocalRelation", output=markers)
    monkeypatch.setattr(exchange, "template", lambda _, schema: f"template {len(schema)}")
    monkeypatch.setattr(
        exchange, "analysed", lambda frame: empty if isinstance(frame, str) else f"plan: {frame}"
    )
    monkeypatch.setattr(exchange, "internal_rows", lambda frame: "no rows")
    leaves: list[Any] = []

    def leaf(_: Any, attributes: Any, rows: Any) -> Made:
        leaves.append((list(attributes), rows))
        return Made("LogicalRDD", said="hole")

    monkeypatch.setattr(exchange, "leaf", leaf)
    placeholder = Made("Leaf", output=[attribute("sum", withNullability="sum or null")])
    upstream = SimpleNamespace(placeholder=placeholder)
    relay = exchange.Relay(
        SPARK, operator(("a",), upstream=upstream, input_plan=placeholder), GROUPS
    )
    assert leaves == [(["sum or null", *markers], "no rows")]
    assert relay.hole.sql() == "hole"
    text = str(relay.plan)
    assert text.startswith("plan: rows of ")
    assert text.partition(".select(")[2] == (
        "when(not m_to.isNotNull(), pmod(xxhash64(a), 8).cast(int)).alias(g), "
        "when(not m_to.isNotNull(), a).alias(k0), when(not m_to.isNotNull(), x).alias(v0), "
        "when(not m_to.isNotNull(), 1.cast(bigint)).alias(n), m_to.alias(m_to), "
        "m_token.alias(m_token))"
    )
