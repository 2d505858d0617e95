"""Writes expressions of a query as texts that are equal for queries of the same meaning.

The text of a column is the expression over the source's columns that computes it, through all
``withColumn`` between. Ids, aliases, the order of ``a + b`` and casts that Spark adds do not change a
text, so it is the same after a restart, and under another release of Spark.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Mapping
from functools import cached_property

from pyspark.sql import SparkSession

from headgate.core.errors import UnsupportedQuery
from headgate.spark.jvm.expressions import interval_parts
from headgate.spark.jvm.gateway import Jvm, class_name, each
from headgate.spark.jvm.shape import (
    FAILED,
    id_of,
    ids_of,
    implicit,
    sql_of_parameters,
    sql_over,
    stands_for_another,
    time_zone,
    unsaid,
)
from headgate.spark.jvm.streams import name_of, options_of, streams_of
from headgate.spark.read.conditions import conjuncts
from headgate.spark.read.expressions import SESSION_WINDOW, sql_text
from headgate.spark.read.windows import gap_of, time_column_of, window_numbers

_MOST = 400
"""Most characters of a text; a checksum replaces the rest of a longer text. Chosen."""

_ANY_ORDER = {
    "Add": " + ",
    "Multiply": " * ",
    "And": " AND ",
    "Or": " OR ",
    "BitwiseAnd": " & ",
    "BitwiseOr": " | ",
    "BitwiseXor": " ^ ",
}
"""Operations whose operands may stand in any order and grouping."""

_EITHER_WAY = {
    "EqualTo": ("=", "="),
    "EqualNullSafe": ("<=>", "<=>"),
    "LessThan": ("<", ">"),
    "LessThanOrEqual": ("<=", ">="),
    "GreaterThan": (">", "<"),
    "GreaterThanOrEqual": (">=", "<="),
}
"""Comparisons, with their sign and the sign after an exchange of their sides."""

_SUFFIX = re.compile(r"^(-?[0-9.]+(?:E-?[0-9]+)?)(?:L|S|Y|D|BD)$")
_NAME = re.compile(r"^\w+$")
_INSTANT = re.compile(r"\bTIMESTAMP\b")
"""Types whose constants are written in the session's time zone."""
_SEEDED = {"Rand", "Randn", "Uuid", "Shuffle"}
_MADE_BY_PYTHON = {
    "MapInPandas",
    "MapInArrow",
    "TransformWithStateInPySpark",
    "FlatMapGroupsInPandasWithState",
    "FlatMapGroupsInPandas",
    "FlatMapGroupsInArrow",
}
_WITHOUT_ZONE = {"TimestampAddInterval", "TimeAdd"}
"""Sums of time and interval, in which only whole days and months depend on the time zone."""

_SUBQUERIES = {"Exists", "ListQuery", "ScalarSubquery"}

_ZONES = {"Etc/UTC": "UTC", "GMT": "UTC", "Z": "UTC", "+00:00": "UTC"}


class Texts:
    """Writes expressions over the input of a plan's node.

    `plan`: plan node. `shared`: texts of the node above, which share the attributes below. `outer`: texts
    of the node around a subquery, whose columns the subquery may use. `exact`: whether to tell apart what
    earlier releases did not: names of each branch of a union, static tables, subqueries, columns that a
    node makes in another way than by a projection, and more.

    Attributes
    ----------
    lookups : set of str    Joins with a static table that provide a column.
    zones : set of str    Time zones of the session on which an expression depends.
    constant_zones : set of str    Time zones in which timestamp constants are written.
    arguments : set of str    Arguments that the SQL of a function omits.
    unions : list of Texts    Unions that provide a column.
    inexact : set of str    Texts that would be others with `exact`.
    """

    def __init__(
        self,
        spark: SparkSession,
        plan: Jvm,
        shared: Texts | None = None,
        *,
        outer: Texts | None = None,
        exact: bool = False,
    ) -> None:
        self.spark = spark
        self.plan = plan
        self.name = class_name(plan)
        self.lookups: set[str] = set() if shared is None else shared.lookups
        self.zones: set[str] = set() if shared is None else shared.zones
        self.constant_zones: set[str] = set() if shared is None else shared.constant_zones
        self.arguments: set[str] = set() if shared is None else shared.arguments
        self.unions: list[Texts] = [] if shared is None else shared.unions
        self.inexact: set[str] = set() if shared is None else shared.inexact
        self.exact: bool = exact if shared is None else shared.exact
        self.outer: Texts | None = shared.outer if outer is None and shared is not None else outer
        self._united_columns: list[list[str]] = []
        self._variables: dict[str, str] = {}
        self._common: dict[str, Jvm] = {}
        self._known: dict[str, str] = {}

    @cached_property
    def _children(self) -> list[Texts]:
        return [Texts(self.spark, child, self) for child in each(self.plan.children())]

    @cached_property
    def _ids(self) -> list[str]:
        return ids_of(self.plan.output())

    def below(self, at: int) -> Texts:
        """Return the texts of a child of the node."""
        return self._children[at]

    # -- columns ----------------------------------------------------------------------------------

    def text_of(self, attribute: Jvm) -> str:
        """Return the text of an output column of the node."""
        return _bare(self._column(id_of(attribute), str(attribute.name())))

    def _column(self, wanted: str, name: str) -> str:
        if wanted not in self._known:
            self._known[wanted] = _short(self._made(wanted, name))
        return self._known[wanted]

    def _made(self, wanted: str, name: str) -> str:
        """Return the text of a column by the kind of the node."""
        if self.name == "Project":
            return self._named(self.plan.projectList(), wanted, name)
        if self.name == "Aggregate":
            return self._named(self.plan.aggregateExpressions(), wanted, name)
        if self.name == "Expand":
            return self._expanded(wanted, name)
        if self.name == "Generate" and wanted in ids_of(self.plan.generatorOutput()):
            at = ids_of(self.plan.generatorOutput()).index(wanted)
            outer = "outer " if self.plan.outer() else ""
            return f"{outer}{self.text(self.plan.generator())}[{at}]"
        if self.name == "Union":
            return self._united(wanted, name)
        if self.name in _MADE_BY_PYTHON and wanted in self._ids:
            self.inexact.add(name)
            columns = self.below(0).columns() if self.exact else ""
            return f"{_function_name(self.plan)}({columns}).{_quoted(name)}"
        return self._from_below(wanted, name)

    def _named(self, expressions: Jvm, wanted: str, name: str) -> str:
        ids = ids_of(expressions)
        if wanted not in ids:
            return self._from_below(wanted, name)
        expression = expressions.apply(ids.index(wanted))
        if class_name(expression) != "Alias":
            return self._from_below(wanted, name)
        window = self._window(expression.child(), expression.metadata())
        return window or self._text(expression.child())

    def _expanded(self, wanted: str, name: str) -> str:
        if wanted not in self._ids:
            return self._from_below(wanted, name)
        at = self._ids.index(wanted)
        every: list[str] = []
        for projection in each(self.plan.projections()):
            expression = projection.apply(at)
            window = self._window(expression, None)
            if window:
                return window
            every.append(self._text(expression))
        texts = dict.fromkeys(every)
        if len(texts) < len(every):
            self.inexact.add(name)
        return " | ".join(every if self.exact else texts)

    def _united(self, wanted: str, name: str) -> str:
        at = self._ids.index(wanted)
        names = [str(child.plan.output().apply(at).name()) for child in self._children]
        if set(names) != {name}:
            self.inexact.add(name)
        if not self.exact:
            names = [name] * len(names)
        pairs = zip(self._children, names, strict=True)
        texts = [child._column(child._ids[at], own) for child, own in pairs]
        if len(set(texts)) > 1:
            if not self._united_columns:
                self.unions.append(self)
            self._united_columns.append(texts)
            if len(set(self._sources)) > 1:
                self.inexact.add(name)
        if len(set(texts)) == 1:
            return texts[0]
        if len(set(texts)) < len(texts):
            self.inexact.add(name)
        return " | ".join(sorted(texts if self.exact else set(texts)))

    def columns(self) -> str:
        """Return the texts of all output columns of the node."""
        return ", ".join(self.text_of(attribute) for attribute in each(self.plan.output()))

    def branches(self) -> str:
        """Return the columns of each branch of a union, as rows; "" if fewer than two columns differ.

        With `exact`, branches of different sources begin with the number of their source.
        """
        columns = sorted(self._united_columns, key=sorted)
        if self.exact and len(set(self._sources)) > 1:
            columns.insert(0, self._sources)
        if len(columns) <= 1:
            return ""
        rows = zip(*columns, strict=True)
        return " | ".join(sorted({f"({', '.join(row)})" for row in rows}))

    @cached_property
    def _sources(self) -> list[str]:
        """Names of the sources of each branch of a union, in the order in which they come first."""
        read = [
            str(
                [
                    (name_of(leaf), sorted(options_of(leaf).items()))
                    for leaf in streams_of(child.plan)
                ]
            )
            for child in self._children
        ]
        numbers = {sources: f"source {n}" for n, sources in enumerate(dict.fromkeys(read), 1)}
        return [numbers[sources] for sources in read]

    def _from_below(self, wanted: str, name: str) -> str:
        there = [i for i, child in enumerate(self._children) if wanted in child._ids]
        if not there:
            return self._own(wanted, name)
        at = there[0]
        text = self._children[at]._column(wanted, name)
        if self.name != "Join":
            return text
        streams = [child.plan.isStreaming() for child in self._children]
        if all(streams) or not any(streams):
            return f"{('left', 'right')[at]}.{_in_parentheses(text)}"
        if streams[at]:
            return text
        self._look_up()
        before = self._children[1 - at]._static_joins
        if before:
            self.inexact.add(text)
        number = before + 1 if before and self.exact else ""
        return f"static{number}.{_in_parentheses(text)}"

    @cached_property
    def _static_joins(self) -> int:
        """Number of joins with a static table in the plan."""
        children = [child for child in self._children if child.plan.isStreaming()]
        below = sum(child._static_joins for child in children)
        if self.name != "Join" or len(children) != 1:
            return below
        return below + (str(self.plan.joinType().sql()).lower() not in ("left semi", "left anti"))

    def _own(self, wanted: str, name: str) -> str:
        """Return the text of a column of a source, or of a node that makes it without a projection."""
        if not self._children:
            return _quoted(name)
        self.inexact.add(name)
        if not self.exact:
            return _quoted(name)
        if self.name == "LateralJoin":
            right = Texts(self.spark, self.plan.right().plan(), self, outer=self)
            return right._column(wanted, name)
        if self.name == "Window" and wanted in ids_of(self.plan.windowExpressions()):
            return self._named(self.plan.windowExpressions(), wanted, name)
        parts = self._parts()
        if self.name == "ScriptTransformation":
            parts = [str(self.plan.script()), self.below(0).columns()]
        return f"{self.name}({', '.join(parts)}).{_quoted(name)}"

    def _parts(self) -> list[str]:
        """Return the texts of the node's expressions, without columns that it makes itself."""
        below = {number for child in self._children for number in child._ids}
        return [
            self.text(part)
            for part in each(self.plan.expressions())
            if class_name(part) != "AttributeReference" or id_of(part) in below
        ]

    def whole(self) -> str:
        """Return the text of a whole plan, such as a subquery's, but for what its tables hold."""
        children = [child.whole() for child in self._children]
        if self.name in ("SubqueryAlias", "View"):
            return children[0]
        parts = (
            self._parts() if children else sorted(str(a.name()) for a in each(self.plan.output()))
        )
        return f"{self.name if children else ''}({', '.join([*parts, *children])})"

    def _look_up(self) -> None:
        """Add a join with a static table to `lookups`."""
        condition = self.plan.condition()
        kind = str(self.plan.joinType().sql()).lower()
        if "" in self._known:
            return
        self._known[""] = kind  # before the condition, whose texts may look up this join again
        parts = conjuncts(self.spark, condition.get()) if condition.isDefined() else []
        said = " AND ".join(sorted(self.text(part) for part in parts))
        self.lookups.add(f"{kind} join on {said}" if said else f"{kind} join")

    def _window(self, expression: Jvm, metadata: Jvm | None) -> str:
        """Return the text of the window that an expression creates; "" for other expressions."""
        if class_name(expression) not in ("CreateNamedStruct", "CaseWhen", "If"):
            return ""
        if "precisetimestampconversion" not in expression.toString():
            return ""
        try:
            time = self.text(time_column_of(expression))
            if metadata is not None and metadata.contains(SESSION_WINDOW):
                return f"session_window({time}, {self._gap(gap_of(expression))})"
            size, advance, offset = window_numbers(expression)
        except UnsupportedQuery:
            return ""
        numbers = [size]
        if offset or advance != size:
            numbers.append(advance)
        if offset:
            numbers.append(offset)
        return f"window({', '.join([time, *map(interval, numbers)])})"

    def _gap(self, gap: Jvm | None) -> str:
        if gap is None or not gap.foldable():
            return "a gap of its own" if gap is None else self.text(gap)
        months, days, micros = interval_parts(gap.eval(None))
        return f"'{months} months'" if months else interval(days * 86_400_000_000 + micros)

    # -- expressions ------------------------------------------------------------------------------

    def text(self, expression: Jvm) -> str:
        """Return the text of an expression over the node's input."""
        return _bare(_short(self._text(expression)))

    def _text(self, expression: Jvm) -> str:
        name = class_name(expression)
        special = _SPECIAL.get(name)
        if special is not None:
            return special(self, expression)
        if name == "AttributeReference":
            return self._from_below(id_of(expression), str(expression.name()))
        if name in _ANY_ORDER:
            parts = sorted(self._operands(expression, name), key=_constants_last)
            return f"({_ANY_ORDER[name].join(parts)})"
        if name in _EITHER_WAY:
            return self._comparison(expression, *_EITHER_WAY[name])
        self._note_zone(expression, name)
        if stands_for_another(self.spark, expression):
            texts = [self._text(parameter) for parameter in each(expression.parameters())]
            text = sql_of_parameters(self.spark, expression, texts) + _silent(expression, name)
            self.inexact.add(text)
            if self.exact:
                self._text(expression.replacement())  # for the time zones on which it depends
        else:
            text = self._generic(expression, name)
        arguments = self._arguments(expression, name)
        if arguments and self.exact:
            escaped = arguments.replace("\\", "\\\\").replace("'", "\\'")
            arguments = f"'{escaped}'"  # upper and lower case count between quotes
        elif arguments:
            self.inexact.add(text)
        if arguments:
            self.arguments.add(f"{_bare(text)}: {arguments}")
        return text

    def _arguments(self, expression: Jvm, name: str) -> str:
        """Return the arguments that the SQL of an expression omits; "" if it omits none."""
        if name in _SUBQUERIES:
            self.inexact.add(name)
            plan = expression.plan()
            if self.exact:
                return Texts(self.spark, plan, self, outer=self).whole()
            return (
                Texts(self.spark, plan, self).text_of(plan.output().apply(0))
                if name == "ScalarSubquery"
                else ""
            )
        if name == "UpdateFields":
            self.inexact.add(name)
            steps = each(expression.fieldOps()) if self.exact else ()
            return ", ".join(f"{class_name(step)} {step.name()}" for step in steps)
        return unsaid(expression, name)

    def _note_zone(self, expression: Jvm, name: str) -> None:
        zone = None if name in _WITHOUT_ZONE else time_zone(self.spark, expression)
        if zone is not None:
            self.zones.add(_ZONES.get(zone, zone))

    def _generic(self, expression: Jvm, name: str) -> str:
        children = list(each(expression.children()))
        if not children:
            return sql_text(expression)
        parts = [(child, self._text(child)) for child in children]
        try:
            text = sql_over(self.spark, expression, parts)
        except FAILED:  # the expression does not accept the replaced children
            return f"{name}({', '.join(text for _, text in parts)})"
        if len(parts) == 1 and text.endswith(f"({parts[0][1]})"):
            text = text.removesuffix(f"({parts[0][1]})") + f"({_bare(parts[0][1])})"
        return text + _silent(expression, name)

    def _operands(self, expression: Jvm, name: str) -> list[str]:
        texts = []
        for child in each(expression.children()):
            same = class_name(child) == name
            texts += self._operands(child, name) if same else [self._text(child)]
        return texts

    def _comparison(self, expression: Jvm, sign: str, turned: str) -> str:
        left, right = (self._text(child) for child in each(expression.children()))
        if _constants_last(right) < _constants_last(left):
            left, sign, right = right, turned, left
        return f"({left} {sign} {right})"

    def _literal(self, literal: Jvm) -> str:
        text = str(literal.sql())
        if _INSTANT.search(str(literal.dataType().sql())):
            zone = str(self.spark.conf.get("spark.sql.session.timeZone"))
            self.constant_zones.add(_ZONES.get(zone, zone))
        number = _SUFFIX.match(text)
        return number[1] if number else text

    def _cast(self, cast: Jvm) -> str:
        child = cast.child()
        text = self._text(child)
        self._note_zone(cast, "Cast")
        same = child.dataType().sql() == cast.dataType().sql()
        number = class_name(child) == "Literal" and _is_number(text)
        whole = cast.dataType().sql() in _WHOLE
        if implicit(self.spark, cast) or same or (number and whole and text.lstrip("-").isdigit()):
            return text
        if str(cast.evalMode()) == "TRY":
            self.inexact.add(text)
            return f"{'TRY_' if self.exact else ''}CAST({text} AS {cast.dataType().sql()})"
        return f"CAST({text} AS {cast.dataType().sql()})"

    def _outer_column(self, reference: Jvm) -> str:
        column = reference.e()
        if self.outer is None or not self.exact:
            return self._generic(reference, "OuterReference")
        return f"outer {self.outer._from_below(id_of(column), str(column.name()))}"

    def _call(self, call: Jvm) -> str:
        text = self._text(call.aggregateFunction())
        if call.isDistinct():
            name, _, rest = text.partition("(")
            text = f"{name}(DISTINCT {rest}"
        condition = call.filter()
        if not condition.isDefined():
            return text
        return f"{text} FILTER (WHERE {_bare(self._text(condition.get()))})"

    def _python(self, udf: Jvm) -> str:
        arguments = ", ".join(self._text(child) for child in each(udf.children()))
        return f"{udf.name()}({arguments})"

    def _among(self, expression: Jvm) -> str:
        value, *options = (self._text(child) for child in each(expression.children()))
        return f"({value} IN ({', '.join(sorted(options))}))"

    def _lambda(self, function: Jvm) -> str:
        around = dict(self._variables)
        names = []
        for variable in each(function.arguments()):
            # Spark's own numbers differ in each session
            names.append(f"x{len(self._variables)}")
            self._variables[id_of(variable)] = names[-1]
        text = f"({', '.join(names)} -> {self._text(function.function())})"
        self._variables = around
        return text

    def _variable(self, variable: Jvm) -> str:
        return self._variables.get(id_of(variable), "x")

    def _field(self, field: Jvm) -> str:
        child = field.child()
        name = str(child.dataType().fieldNames()[field.ordinal()])
        return f"{self._text(child)}.{_quoted(name)}"

    def _with(self, expression: Jvm) -> str:
        for definition in each(expression.defs()):
            self._common[definition.id().toString()] = definition.child()
        return self._text(expression.child())

    def _reference(self, reference: Jvm) -> str:
        expression = self._common.get(reference.id().toString())
        return sql_text(reference) if expression is None else self._text(expression)


_SPECIAL: Mapping[str, Callable[[Texts, Jvm], str]] = {
    "AggregateExpression": Texts._call,
    "Alias": lambda texts, one: texts._text(one.child()),
    "Between": lambda texts, one: texts._text(one.replacement()),
    "Cast": Texts._cast,
    "CommonExpressionRef": Texts._reference,
    "GetStructField": Texts._field,
    "In": Texts._among,
    "KnownNotNull": lambda texts, one: texts._text(one.child()),
    "LambdaFunction": Texts._lambda,
    "Literal": Texts._literal,
    "NamedLambdaVariable": Texts._variable,
    "OuterReference": Texts._outer_column,
    "PreciseTimestampConversion": lambda texts, one: texts._text(one.child()),
    "PythonUDAF": Texts._python,
    "PythonUDF": Texts._python,
    "With": Texts._with,
    **{name: lambda texts, one: f"{one.prettyName()}()" for name in _SEEDED},
}
_WHOLE = ("TINYINT", "SMALLINT", "INT", "BIGINT")


def interval(micros: int) -> str:
    """Return a length of time as an exact text, such as ``'10 s'``."""
    whole, rest = divmod(micros, 1_000_000)
    return f"'{micros} us'" if rest else f"'{whole} s'"


def _silent(function: Jvm, name: str) -> str:
    """Return the facts of an expression that its SQL omits."""
    if name in ("First", "Last", "AnyValue") and function.ignoreNulls():
        return " IGNORE NULLS"
    if name == "HyperLogLogPlusPlus":
        return f" WITHIN {function.relativeSD()}"
    return ""


def _function_name(plan: Jvm) -> str:
    return str(plan.functionExpr().name())


def _constants_last(text: str) -> tuple[bool, str]:
    return (_is_number(text) or text.startswith("'"), text)


def _is_number(text: str) -> bool:
    return re.fullmatch(r"-?[0-9.]+(E-?[0-9]+)?", text) is not None


def _bare(text: str) -> str:
    """Return a text without its outermost parentheses, if they enclose the whole text."""
    if not text.startswith("("):
        return text
    depth = 0
    for at, sign in enumerate(text):
        depth += (sign == "(") - (sign == ")")
        if depth == 0:
            return text[1:-1] if at == len(text) - 1 else text
    return text


def _quoted(name: str) -> str:
    return name if _NAME.match(name) else f"`{name}`"


def _in_parentheses(text: str) -> str:
    return text if re.fullmatch(r"[\w.`]+", text) else f"({_bare(text)})"


def _short(text: str) -> str:
    """Return a text; a long text is cut and gets a checksum of the whole."""
    if len(text) <= _MOST:
        return text
    return f"{text[:_MOST]}... {hashlib.sha256(text.encode()).hexdigest()[:16]}"
