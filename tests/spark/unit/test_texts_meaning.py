"""Checks the texts by which a checkpoint compares keys, aggregates and conditions of two queries."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from made_plans import Items, Made, attribute, source

from headgate.checkpoint.identity import ARGUMENTS, BRANCHES, CASE, CONSTANTS
from headgate.core.errors import UnsupportedQuery
from headgate.spark.jvm.shape import FAILED
from headgate.spark.read import conditions, texts
from headgate.spark.read.expressions import SESSION_WINDOW
from headgate.spark.read.meaning import meaning as meaning_of
from headgate.spark.read.texts import Texts
from headgate.spark.worker.window_processor import WindowProcessor

SETTINGS: dict[str, str] = {}
SPARK: Any = SimpleNamespace(conf=SimpleNamespace(get=lambda key: SETTINGS.get(key, "false")))


def ids(expressions: Any) -> list[str]:
    return [one.exprId().toString() for one in expressions]


def over(spark: Any, expression: Made, parts: Any) -> str:
    if expression._parts.get("odd"):
        raise FAILED[0]("no such children")
    return f"{expression._kind.lower()}({', '.join(text for _, text in parts)})"


@pytest.fixture(autouse=True)
def plain(monkeypatch: pytest.MonkeyPatch) -> None:
    """Read facts of expressions from their parts in place of the JVM."""
    SETTINGS.clear()
    for name, stub in {
        "ids_of": ids,
        "id_of": lambda one: one.exprId().toString(),
        "stands_for_another": lambda spark, one: "parameters" in one._parts,
        "sql_of_parameters": lambda spark, one, said: f"{one._kind}<{', '.join(said)}>",
        "sql_over": over,
        "implicit": lambda spark, one: one._parts.get("implicit", False),
        "time_zone": lambda spark, one: one._parts.get("zone"),
        "unsaid": lambda one, name: one._parts.get("unsaid", ""),
        "streams_of": lambda plan: [],
    }.items():
        monkeypatch.setattr(texts, name, stub)
    monkeypatch.setattr("headgate.spark.read.meaning.streams_of", lambda plan: [])
    monkeypatch.setattr(conditions, "_plain", lambda spark, condition: condition)


def kind(name: str) -> Any:
    return SimpleNamespace(sql=lambda: name)


def lit(text: str, of: str = "INT") -> Made:
    return Made("Literal", said=text, dataType=kind(of))


def option(value: Any) -> Any:
    """Return an Option of Scala's, which has nothing to get if it is empty."""
    defined = value is not None
    return SimpleNamespace(isDefined=lambda: defined, **({"get": lambda: value} if defined else {}))


def named(column: Made, child: Made, **parts: Any) -> Made:
    """Return an alias that makes a column."""
    metadata = SimpleNamespace(contains=parts.pop("metadata", lambda _: False))
    made = Made("Alias", child, metadata=metadata, **parts)
    made._id = column._id
    return made


A, B, D = (attribute(name, SimpleNamespace(sql=lambda: "INT")) for name in ("a", "b", "odd name"))
ROWS = source(A, B, D)


def made(*children: Made, kind: str = "Filter", **parts: Any) -> Made:
    return Made(kind, *(children or (ROWS,)), **parts)


def text(expression: Made) -> str:
    return Texts(SPARK, made()).text(expression)


TEXTS = {
    "a column": (A, "a"),
    "a column that needs quotes": (D, "`odd name`"),
    "a sum in any order": (Made("Add", lit("1"), Made("Add", B, A)), "a + b + 1"),
    "a number before its column": (Made("LessThan", lit("3"), A), "a > 3"),
    "a text before its column": (Made("GreaterThanOrEqual", lit("'x'"), A), "a <= 'x'"),
    "columns in the other order": (Made("LessThanOrEqual", B, A), "a >= b"),
    "columns in order": (Made("LessThan", A, B), "a < b"),
    "both parts in parentheses": (
        Made("Subtract", Made("Add", A, B), Made("Add", A, A)), "subtract((a + b), (a + a))",
    ),
    "one argument in parentheses": (Made("Abs", Made("Add", A, B)), "abs(a + b)"),
    "a long": (lit("5L", "BIGINT"), "5"),
    "a small number": (lit("-1.5E-3D", "DOUBLE"), "-1.5E-3"),
    "a text that ends like a number": (lit("'5L'", "STRING"), "'5L'"),
    "a function with other children": (Made("Odd", A, B, odd=True), "Odd(a, b)"),
    "options in any order": (Made("In", A, lit("2"), lit("1")), "a IN (1, 2)"),
    "a function of Python": (Made("PythonUDF", A, B, name="twice"), "twice(a, b)"),
    "a random number": (Made("Rand", lit("7L"), prettyName="rand"), "rand()"),
    "nulls that are skipped": (Made("First", A, ignoreNulls=True), "first(a) IGNORE NULLS"),
    "nulls that are not": (Made("First", A, ignoreNulls=False), "first(a)"),
    "nulls of another function": (Made("Sum", A, ignoreNulls=True), "sum(a)"),
    "how near": (
        Made("HyperLogLogPlusPlus", A, relativeSD=0.05), "hyperloglogplusplus(a) WITHIN 0.05",
    ),
    "a replaced function": (Made("Nvl", A, parameters=[A, lit("0")]), "Nvl<a, 0>"),
    "what is known": (Made("KnownNotNull", Made("Alias", A)), "a"),
}  # fmt: skip


@pytest.mark.parametrize("what", TEXTS)
def test_an_expression_has_one_text(what: str) -> None:
    expression, expected = TEXTS[what]
    assert text(expression) == expected


@pytest.mark.parametrize(
    ("before", "after", "implicit", "expected"),
    [
        (attribute("a", kind("INT")), "BIGINT", False, "CAST(a AS BIGINT)"),
        (attribute("a", kind("INT")), "BIGINT", True, "a"),
        (attribute("a", kind("INT")), "INT", False, "a"),
        (lit("5"), "BIGINT", False, "5"),
        (lit("-5"), "SMALLINT", False, "-5"),
        (lit("5"), "DOUBLE", False, "CAST(5 AS DOUBLE)"),
        (lit("1.5", "DECIMAL(2,1)"), "INT", False, "CAST(1.5 AS INT)"),
        (lit("'5'", "STRING"), "INT", False, "CAST('5' AS INT)"),
    ],
)
def test_a_cast_counts_where_the_user_wrote_it_and_it_changes_the_value(
    before: Made, after: str, implicit: bool, expected: str
) -> None:
    child = attribute("a", kind("INT")) if before._kind == "AttributeReference" else before
    assert (
        text(Made("Cast", child, dataType=kind(after), implicit=implicit, evalMode="LEGACY"))
        == expected
    )


def test_a_call_says_distinct_and_its_filter() -> None:
    more = Made("GreaterThan", A, lit("3"))
    for distinct, where, expected in (
        (False, None, "sum(a)"),
        (True, None, "sum(DISTINCT a)"),
        (False, more, "sum(a) FILTER (WHERE a > 3)"),
        (True, more, "sum(DISTINCT a) FILTER (WHERE a > 3)"),
    ):
        parts = {"isDistinct": distinct, "filter": option(where)}
        call = Made("AggregateExpression", aggregateFunction=Made("Sum", A), **parts)
        assert text(call) == expected


def test_variables_of_functions_are_numbered_from_the_outermost() -> None:
    x, y = (Made("NamedLambdaVariable") for _ in range(2))
    inner = Made("LambdaFunction", arguments=[y], function=Made("Add", y, x))
    outer = Made("LambdaFunction", arguments=[x], function=Made("Map", A, inner))
    known = Texts(SPARK, made())
    assert known.text(outer) == "x0 -> map(a, (x1 -> (x0 + x1)))"
    assert known.text(x) == "x", "a variable is known within its function alone"


def test_a_long_text_has_a_checksum_and_a_text_of_400_characters_none() -> None:
    known = [text(attribute("x" * length)) for length in (400, 401, 402)]
    assert known[0] == "x" * 400
    assert [len(one) for one in known[1:]] == [420, 420]
    assert all(one.startswith("x" * 400 + "... ") for one in known[1:])
    assert known[1] != known[2]


def test_time_zones_count_once_and_under_one_name() -> None:
    SETTINGS["spark.sql.session.timeZone"] = "GMT"
    known = Texts(SPARK, made())
    for zone in ("Etc/UTC", "Z", "Asia/Tokyo", None):
        known.text(Made("ToDate", A, zone=zone))
    known.text(Made("TimeAdd", A, zone="Asia/Seoul"))
    assert known.zones == {"UTC", "Asia/Tokyo"}
    assert known.constant_zones == set()
    known.text(lit("DATE '2026-01-01'", "DATE"))
    known.text(lit("TIMESTAMP_NTZ '2026-01-01 00:00:00'", "TIMESTAMP_NTZ"))
    assert known.constant_zones == set()
    known.text(lit("TIMESTAMP '2026-01-01 00:00:00'", "TIMESTAMP"))
    assert known.constant_zones == {"UTC"}


def test_what_the_sql_of_a_function_omits_is_noted_with_the_function() -> None:
    known = Texts(SPARK, made())
    known.text(Made("Mode", A, unsaid="ascending"))
    known.text(Made("Sum", A))
    assert known.arguments == {"mode(a): ascending"}


def test_a_column_is_the_expression_that_makes_it_through_all_nodes_between() -> None:
    x, y = attribute("x"), attribute("y")
    first = made(kind="Project", projectList=[named(x, Made("Add", A, lit("1"))), B], output=[x, B])
    second = made(made(first, output=[x, B]), kind="Project", projectList=[named(y, x), B, x])
    known = Texts(SPARK, second)
    assert [known.text_of(one) for one in (y, x, B)] == ["a + 1", "a + 1", "b"]


def test_a_column_of_a_generator_has_its_place() -> None:
    x, y = attribute("x"), attribute("y")
    for outer, before in ((False, ""), (True, "outer ")):
        node = made(
            kind="Generate", generatorOutput=[x, y], generator=Made("Explode", A), outer=outer
        )
        known = Texts(SPARK, node)
        assert [known.text_of(one) for one in (x, y, A)] == [
            f"{before}explode(a)[0]", f"{before}explode(a)[1]", "a",
        ]  # fmt: skip


def test_a_column_that_python_makes_is_of_its_function() -> None:
    x = attribute("x")
    node = made(kind="MapInPandas", output=[x], functionExpr=Made("PythonUDF", name="mine"))
    assert Texts(SPARK, node).text_of(x) == "mine().x"


def test_a_column_of_a_union_has_the_texts_of_its_branches_in_any_order() -> None:
    u, v, w = attribute("u"), attribute("v"), attribute("w")
    branches = []
    for columns in ((A, B, D), (B, A, D)):
        new = [attribute(name) for name in "uvw"]
        pairs = [named(column, below) for column, below in zip(new, columns, strict=True)]
        branches.append(made(kind="Project", projectList=pairs, output=new))
    node = made(*branches, kind="Union", output=[u, v, w])
    known = Texts(SPARK, node)
    assert known.text_of(w) == "`odd name`"
    assert (known.unions, known.branches()) == ([], "")
    assert known.text_of(u) == "a | b"
    assert (known.unions, known.branches()) == ([known], ""), "one column has no partner"
    assert known.text_of(v) == "a | b"
    assert known.unions == [known]
    assert known.branches() == "(a, b) | (b, a)"


def join(left: Made, right: Made, condition: Any = None, **parts: Any) -> Made:
    return made(
        left, right, kind="Join", left=left, right=right, condition=option(condition),
        joinType=kind("LEFT OUTER"), **parts,
    )  # fmt: skip


def test_columns_of_two_streams_have_their_side_and_of_a_table_its_lookup() -> None:
    p = attribute("p")
    known = Texts(SPARK, join(source(A), source(p)))
    assert (known.text_of(A), known.text_of(p), known.lookups) == ("left.a", "right.p", set())
    table = source(p, streams=False)
    both = Made("And", Made("LessThan", p, A), Made("EqualTo", p, A))
    known = Texts(SPARK, join(source(A), table, both))
    assert (known.text_of(A), known.lookups) == ("a", set()), "a table that only filters is none"
    assert known.text_of(p) == "static.p"
    assert known.lookups == {"left outer join on a = static.p AND a > static.p"}
    known = Texts(SPARK, join(table, source(A)))
    assert (known.text_of(p), known.text_of(A)) == ("static.p", "a")
    assert known.lookups == {"left outer join"}


def window_of(
    monkeypatch: pytest.MonkeyPatch, numbers: Any, *, session: Any = None, kind: str = "If"
) -> str:
    def read(expression: Made) -> Any:
        if numbers is None:
            raise UnsupportedQuery("no window")
        return numbers

    monkeypatch.setattr(texts, "time_column_of", lambda expression: A)
    monkeypatch.setattr(texts, "window_numbers", read)
    monkeypatch.setattr(texts, "gap_of", lambda expression: session)
    monkeypatch.setattr(texts, "interval_parts", lambda value: value)
    x = attribute("x")
    made_by = Made(kind, said="precisetimestampconversion(a)")
    column = named(x, made_by, metadata=lambda key: key == SESSION_WINDOW and bool(session))
    return Texts(SPARK, made(kind="Project", projectList=[column])).text_of(x)


@pytest.mark.parametrize(
    ("numbers", "expected"),
    [
        ((10_000_000, 10_000_000, 0), "window(a, '10 s')"),
        ((10_000_000, 2_000_000, 0), "window(a, '10 s', '2 s')"),
        ((10_000_000, 10_000_000, 1), "window(a, '10 s', '10 s', '1 us')"),
        ((1_500_000, 1_500_000, 0), "window(a, '1500000 us')"),
        (None, "precisetimestampconversion(a)"),
    ],
)
def test_a_window_says_no_more_than_its_call_needs(
    monkeypatch: pytest.MonkeyPatch, numbers: Any, expected: str
) -> None:
    assert window_of(monkeypatch, numbers) == expected
    assert window_of(monkeypatch, numbers, kind="Sum") == "precisetimestampconversion(a)"


@pytest.mark.parametrize(
    ("parts", "expected"),
    [
        ((0, 0, 3_000_000), "'3 s'"),
        ((0, 1, 500_000), "'86400500000 us'"),
        ((2, 0, 0), "'2 months'"),
    ],
)
def test_a_session_says_its_gap(monkeypatch: pytest.MonkeyPatch, parts: Any, expected: str) -> None:
    gap = Made("Literal", foldable=True, eval=parts)
    assert window_of(monkeypatch, None, session=gap) == f"session_window(a, {expected})"
    own = Made("AttributeReference", name="gap", foldable=False)
    assert window_of(monkeypatch, None, session=own) == "session_window(a, gap)"


# --- The meaning of operators ------------------------------------------------------------------------


def operator(node: Any, number: int = 0, **parts: Any) -> Any:
    return SimpleNamespace(id=f"op-{number}", node=node, **parts)


def means(node: Any, **parts: Any) -> Any:
    return meaning_of(SPARK, [operator(node, **parts)])["operators"].get("op-0")


def test_what_has_no_node_or_an_unknown_node_has_no_meaning() -> None:
    assert meaning_of(SPARK, [operator(None), operator(made(), 1)]) == {
        "version": 1, "operators": {}, "exact": {},
    }  # fmt: skip


@pytest.mark.parametrize(("setting", "said"), [("false", False), ("true", True), ("TRUE", True)])
def test_case_counts_where_the_session_is_sensitive(setting: str, said: bool) -> None:
    SETTINGS["spark.sql.caseSensitive"] = setting
    found = meaning_of(SPARK, [])
    assert found.get(CASE) == (True if said else None)


def aggregate(at: int, *grouping: Made, order: tuple[Made, ...] = ()) -> Any:
    return SimpleNamespace(grouping=grouping, time_index=at, order=order)


def test_an_aggregate_has_keys_window_and_each_call_once() -> None:
    total = Made("Sum", A, dataType=kind("BIGINT"))
    call = Made(
        "AggregateExpression", aggregateFunction=total, isDistinct=False, filter=option(None)
    )
    node = made(kind="Aggregate", aggregateExpressions=[Made("Add", call, lit("1")), A, call])
    whole = aggregate(1, A, B, D, order=(B,))
    assert means(node, aggregate=whole) == {
        "keys": ["a", "`odd name`"], "window": "b", "aggregates": ["sum(a)"], "order": ["b"],
        "types": ["INT", "INT", "BIGINT"],
    }  # fmt: skip
    assert means(node, aggregate=aggregate(-1, A, B)) == {
        "keys": ["a", "b"], "window": "", "aggregates": ["sum(a)"], "types": ["INT", "INT", "BIGINT"],
    }  # fmt: skip
    assert means(node, aggregate=aggregate(0, A))["window"] == "a"


def test_facts_of_all_texts_stand_beside_an_operators_own() -> None:
    SETTINGS["spark.sql.session.timeZone"] = "Asia/Tokyo"
    parts = {"unsaid": "ascending", "zone": "UTC", "dataType": kind("INT")}
    moment = lit("TIMESTAMP 'x'", "TIMESTAMP")
    keys = (Made("Mode", A, **parts), Made("Later", moment, zone="CET", dataType=kind("TIMESTAMP")))
    found = means(made(kind="Aggregate", aggregateExpressions=[]), aggregate=aggregate(-1, *keys))
    assert found["time zone"] == "CET, UTC"
    assert found[CONSTANTS] == "Asia/Tokyo"
    assert found[ARGUMENTS] == ["mode(a): ascending"]
    assert not {"lookups", BRANCHES} & set(found)
    p = attribute("p", kind("INT"))
    below = join(source(A), source(p, streams=False), output=[A, p])
    node = made(below, kind="Aggregate", aggregateExpressions=[])
    assert means(node, aggregate=aggregate(-1, p)) == {
        "keys": ["static.p"], "window": "", "aggregates": [], "lookups": ["left outer join"],
        "types": ["INT"],
    }  # fmt: skip


def test_duplicates_have_columns_and_an_event_time() -> None:
    at = attribute("at", watermark=True)
    for name in ("Deduplicate", "DeduplicateWithinWatermark"):
        for columns, time in (((A, at), "at"), ((A, B), "")):
            node = made(source(*dict.fromkeys((*columns, B))), kind=name, keys=[B])
            assert means(node) == {"columns": ["b"], "event time": time}


def test_a_join_has_keys_condition_and_the_columns_of_its_sides() -> None:
    at, p = attribute("at", watermark=True), attribute("p")
    equal = Made("EqualTo", p, A)
    left, right = (
        SimpleNamespace(keys=[A], compared=[(0, Made("Abs", A))], attributes=[A, at]),
        SimpleNamespace(keys=[p], compared=[], attributes=[p]),
    )
    node = join(source(A, at), source(p), Made("And", equal, Made("LessThan", A, lit("3"))))
    assert means(node, join=(left, right)) == {
        "join": "left outer",
        "keys": ["left.a = right.p"],
        "condition": ["left.a < 3", "left.a = right.p"],
        "left columns": ["a", "at", "abs(left.a)"],
        "left event time": "at",
        "right columns": ["p"],
        "right event time": "",
    }
    assert means(join(source(A), source(p)), join=(left, right))["condition"] == []


class Windowed(WindowProcessor):
    """Has a window without its functions."""

    window = "10 s"


def test_a_function_with_state_has_keys_and_the_window_of_a_window_processor() -> None:
    node = made(kind="TransformWithStateInPySpark", leftAttributes=[A, B])
    assert means(node, spec=SimpleNamespace()) == {"keys": ["a", "b"]}
    user: Any = object.__new__(Windowed)
    for processor in (user, SimpleNamespace(processor=SimpleNamespace(processor=user))):
        spec = SimpleNamespace(processor=processor)
        assert means(node, spec=spec) == {"keys": ["a", "b"], "window": "10 s"}
    state = made(kind="FlatMapGroupsInPandasWithState", groupingAttributes=[B])
    assert means(state) == {"keys": ["b"]}


def test_a_column_of_an_expansion_has_the_texts_of_all_its_rows_or_its_window(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    x, w = attribute("x"), attribute("w")
    window = Made("If", said="precisetimestampconversion(a)")
    monkeypatch.setattr(texts, "time_column_of", lambda expression: A)
    monkeypatch.setattr(texts, "window_numbers", lambda expression: (10_000_000, 2_000_000, 0))
    rows = [Items([A, window]), Items([lit("NULL"), window]), Items([A, window])]
    known = Texts(SPARK, made(kind="Expand", output=[x, w], projections=rows))
    assert known.text_of(x) == "a | NULL"
    assert known.text_of(w) == "window(a, '10 s', '2 s')"
    assert known.text_of(B) == "b"


def test_a_function_of_python_makes_no_column_of_a_node_below_it() -> None:
    node = made(kind="MapInPandas", output=[A], functionExpr=Made("PythonUDF", name="mine"))
    assert Texts(SPARK, node).text_of(B) == "b"
