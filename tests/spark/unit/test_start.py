"""How a query starts from its settings: which way, in which order, and what is undone; without Spark."""

from __future__ import annotations

import warnings
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import pytest

from headgate.checkpoint.manifest import Manifest
from headgate.core.errors import CheckpointError, ConfigError, UnsupportedQuery
from headgate.core.slo import parse_slo
from headgate.spark.api import start as starting
from headgate.spark.api.real_time import TooFewCores
from headgate.spark.job.job import JobConfig
from headgate.spark.settings.query_settings import QuerySettings

SLO = (parse_slo("mean < 2 s over 1 s"),)
FRAME: Any = SimpleNamespace(sparkSession="the session", schema="k int")
REAL_TIME = {"realTime": "5 minutes"}


def settings(**given: Any) -> QuerySettings:
    return QuerySettings(**given)


def pools_policy() -> Any:
    return SimpleNamespace(name="psps")


# --- Which way -----------------------------------------------------------------------------------------


@pytest.fixture
def ways(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Settings with which queries start, once it is clear that they may."""
    started: list[Any] = []

    def begin(df: Any, given: Any, *watches: Any) -> str:
        started.append(given)
        return "a query"

    monkeypatch.setattr(starting, "_started", begin)
    monkeypatch.setattr(starting, "active", lambda session: nullcontext())
    monkeypatch.setattr(starting, "check_settings", lambda given: started.append("real time"))
    return started


def test_a_query_starts_with_its_settings_and_one_in_real_time_has_them_checked(
    ways: list[Any],
) -> None:
    plain, real = settings(), settings(trigger=REAL_TIME)
    assert starting.start(FRAME, plain) == "a query"
    starting.start(FRAME, real)
    assert ways == [plain, "real time", real]


@pytest.mark.parametrize(
    "why", [UnsupportedQuery("no feed; leave it out."), TooFewCores("2 cores; use more.")]
)
def test_what_cannot_run_in_real_time_runs_in_micro_batches_if_allowed(
    ways: list[Any], monkeypatch: pytest.MonkeyPatch, why: Exception
) -> None:
    def begin(df: Any, given: QuerySettings, *_: Any) -> str:
        if given.is_real_time:
            raise why
        ways.append(given)
        return "a query"

    monkeypatch.setattr(starting, "_started", begin)
    options = {"headgate.release": "early", "path": "p"}
    asked = settings(trigger=REAL_TIME, fallback="micro-batch", options=options)
    with pytest.warns(UserWarning, match=rf"^{str(why)[:7]}: it runs in micro-batches\.$"):
        assert starting.start(FRAME, asked) == "a query"
    made = ways[-1]
    assert (made.trigger, dict(made.options)) == ({}, {"path": "p"})
    with pytest.raises(type(why)):
        starting.start(FRAME, settings(trigger=REAL_TIME))


def test_what_can_run_in_real_time_does_whatever_is_allowed(ways: list[Any]) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        starting.start(FRAME, settings(trigger=REAL_TIME, fallback="micro-batch"))
    assert ways == ["real time", settings(trigger=REAL_TIME, fallback="error")]


def test_results_are_released_early_in_real_time_only(ways: list[Any]) -> None:
    with pytest.raises(ConfigError, match=r'^\.release\("early"\) is for trigger\(realTime'):
        starting.start(FRAME, settings(options={"headgate.release": "early"}))
    starting.start(FRAME, settings(trigger=REAL_TIME, options={"headgate.release": "early"}))
    starting.start(FRAME, settings(options={"headgate.release": "committed"}))
    assert len(ways) == 3


def test_pools_neither_advise_nor_have_a_complete_result(ways: list[Any]) -> None:
    policy = pools_policy()
    with pytest.raises(ConfigError, match="psps cannot only advise"):
        starting.start(FRAME, settings(replica_policy=policy, advise=True))
    with pytest.raises(ConfigError, match=r'psps runs stateless queries, .*"complete"'):
        starting.start(FRAME, settings(replica_policy=policy, mode="complete"))
    assert ways == []
    starting.start(FRAME, settings(replica_policy=policy, mode="update"))
    starting.start(FRAME, settings(advise=True, mode="complete"))
    assert len(ways) == 2


@pytest.fixture
def parts(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What is done for a query in the thread that starts it."""
    did: list[Any] = []

    def stub(name: str, result: Any) -> None:
        def call(*given: Any) -> Any:
            did.append((name, *[one for one in given if isinstance(one, str)]))
            return result

        monkeypatch.setattr(starting, name, call)

    for name, result in {
        "Warming": "warming",
        "check_evolution": None,
        "planned": "the plan",
        "passed": "what passes",
        "flow_of": "the flow",
        "analysed": "the analysed plan",
        "check_brokers": None,
        "check_name": None,
        "_start_slots": "of slots",
        "_start_pools": "of pools",
        "_start_plain": "of Spark",
    }.items():
        stub(name, result)
    return did


def begun(given: QuerySettings) -> Any:
    return starting._started(FRAME, given, lambda loop, _: loop, lambda _: Any)  # type: ignore[arg-type, return-value]


def test_a_query_of_slots_is_planned_while_workers_warm_up_and_refused_before_it_starts(
    parts: list[Any],
) -> None:
    assert begun(settings(name="clicks")) == "of slots"
    assert parts == [
        ("Warming", "the session"),
        ("check_evolution", "the session"),
        ("planned",),
        ("analysed",),
        ("check_brokers", "the analysed plan"),
        ("check_name", "the session", "clicks"),
        ("_start_slots", "the plan", "warming"),
    ]
    parts.clear()
    begun(settings(trigger=REAL_TIME))
    assert parts[3:5] == [
        ("passed", "the session", "the plan"),
        ("flow_of", "the session", "what passes"),
    ]
    assert parts[-1] == ("_start_slots", "what passes", "warming", "the flow")


def test_a_query_that_is_refused_runs_on_plain_spark_only_where_that_was_allowed(
    parts: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: Any) -> None:
        raise UnsupportedQuery("no sort.")

    monkeypatch.setattr(starting, "planned", refuse)
    assert begun(settings(fallback="spark")) == "of Spark"
    for fallback in ("error", "micro-batch"):
        with pytest.raises(UnsupportedQuery, match="no sort"):
            begun(settings(fallback=fallback))
    assert begun(settings(replica_policy=pools_policy(), fallback="spark")) == "of pools"


def test_a_plan_is_read_as_options_say_and_without_arrivals_for_who_only_looks(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(starting, "read", lambda *given, **named: (given, named))
    asked: Any = starting.planned(FRAME, settings(mode="update"))
    assert asked == ((FRAME, "update", None, ()), {"asks_kafka": True, "whole_windows": False})
    options = {
        "headgate.arrival": "at", "headgate.ordered": "ts, v", "headgate.windows": "whole",
    }  # fmt: skip
    asked = starting.planned(FRAME, settings(options=options))
    assert asked == (
        (FRAME, "append", "at", ("ts", "v")), {"asks_kafka": True, "whole_windows": True},
    )  # fmt: skip
    asked = starting.planned(FRAME, settings(options=options), arrivals=False)
    assert asked[0][2] is None
    assert asked[1]["asks_kafka"] is False


def test_plain_spark_writes_to_its_own_sinks_and_tables(monkeypatch: pytest.MonkeyPatch) -> None:
    writer = SimpleNamespace(start=lambda: "started", toTable=lambda name: f"into {name}")
    monkeypatch.setattr(starting.configured, "plain_writer", lambda df, given: writer)
    monkeypatch.setattr(starting, "installed", lambda group: {"mine": group})
    assert starting._start_plain(FRAME, settings(format="parquet")) == "started"
    assert starting._start_plain(FRAME, settings()) == "started"
    assert starting._start_plain(FRAME, settings(table="t")) == "into t"
    with pytest.raises(ConfigError, match='format "Mine" is a sink of headgate'):
        starting._start_plain(FRAME, settings(format="Mine"))


# --- What is refused, and what follows from settings ---------------------------------------------------


def manifest(**engine: Any) -> Manifest:
    return Manifest("j", 1, 1, 0, {}, {}, {}, {}, engine=engine)


def test_micro_batches_do_not_follow_what_only_real_time_reads() -> None:
    rows = manifest(sources=['{"headgate_rows": 7}'])
    other = manifest(sources=["{}"])
    checkpoint: Any = SimpleNamespace(latest=lambda: rows)
    flow: Any = "a flow"
    assert starting._newest(checkpoint, flow) is rows
    from headgate.checkpoint import epochs

    assert starting._newest(SimpleNamespace(latest=lambda: other), None) is other  # type: ignore[arg-type]
    rows = manifest(sources=[f'{{"{epochs.REAL_TIME_ONLY}": 7}}'])
    with pytest.raises(ConfigError, match="in real time, row by row"):
        starting._newest(checkpoint, None)


@pytest.mark.parametrize(
    ("url", "operators", "refused"),
    [("s3://b/k", [], True), ("s3://b/k", ["op"], False), (None, [], False)],
)
def test_a_store_is_for_queries_whose_steps_bring_something_there(
    url: str | None, operators: list[str], refused: bool
) -> None:
    where: Any = SimpleNamespace(url=url)
    plan: Any = SimpleNamespace(operators=operators)
    if not refused:
        starting._check_store(where, plan)
        return
    with pytest.raises(CheckpointError, match=r"^checkpoint s3://b/k would hold nothing"):
        starting._check_store(where, plan)


@pytest.mark.parametrize(
    ("trigger", "without_data", "needs"),
    [({"once": True}, "true", True), ({}, "false", True), ({"availableNow": True}, "true", False)],
)
def test_what_is_due_waits_for_records_where_spark_lets_it_wait(
    trigger: dict[str, Any], without_data: str, needs: bool
) -> None:
    conf = {"spark.sql.streaming.noDataMicroBatches.enabled": without_data}
    spark: Any = SimpleNamespace(conf=conf)
    assert starting._needs_records(spark, settings(trigger=trigger)) is needs


class FakeController:
    """Keeps what a controller is made of."""

    def __init__(self, *given: Any, **named: Any) -> None:
        self.config, self.given, self.named = given[0], given, named
        self.unread: Any = None

    def follow_sources(self, unread: Any) -> None:
        self.unread = unread


def job(*operators: Any) -> Any:
    return SimpleNamespace(
        query=SimpleNamespace(operators=list(operators)), config=JobConfig("q", slots=2, budget_s=0.5),
        states="the states", changes="the changes",
        recorder=SimpleNamespace(
            write="the journal", path="its path", progress=SimpleNamespace(unread=9)
        ),
        set_budget="sets the budget",
    )  # fmt: skip


def operator(name: str, *parents: Any, unsplittable: str = "") -> Any:
    spec = SimpleNamespace(unsplittable=unsplittable)
    return SimpleNamespace(id=name, spec=spec, parents=parents)


@pytest.fixture
def controlled(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr(starting, "Controller", FakeController)
    monkeypatch.setattr(starting, "results_after_us", lambda operators: {"a": len(operators)})
    executors = SimpleNamespace(cores=8)

    def make(given: QuerySettings, *operators: Any) -> Any:
        return starting._controller(given, job(*operators), executors, 16)  # type: ignore[arg-type]

    return make


def test_a_query_is_steered_by_its_slo(controlled: Any) -> None:
    below = operator("a", unsplittable="its state is one value")
    above = operator("b", below)
    made = controlled(settings(slos=SLO, advise=True), below, above)
    config = made.config
    assert (config.slos, config.policy.name, config.advise) == (SLO, "unified(0.1)", True)
    assert config.unsplittable == {"a": "its state is one value", "b": ""}
    assert (config.windows_us, config.cycle_s) == ({"a": 2}, 0.0)
    assert (config.slots_min, config.slots_max) == (1, 8)
    assert made.given[2:] == ("the states", "the changes", "the journal")
    assert made.named["parents"] == {"b": ("a",)}
    assert made.named["budget_s"]() == 0.5
    assert (made.named["cores"].at_once(), made.named["cores"].machine) == (8, 16)
    assert made.unread() == 9


def test_in_real_time_key_groups_stay_whole_and_cycles_are_half_a_time_slot(
    controlled: Any,
) -> None:
    named: Any = SimpleNamespace(name="mine")
    made = controlled(settings(slos=SLO, policy=named, trigger=REAL_TIME), operator("a"))
    assert made.config.unsplittable == {"a": "in real time key groups are not split"}
    assert made.config.cycle_s == starting.DELTA_S / 2
    assert made.config.policy is named


def test_without_an_slo_or_an_operator_nothing_is_steered(controlled: Any) -> None:
    static, other = SimpleNamespace(name="static"), SimpleNamespace(name="mine(5)")
    assert controlled(settings(), operator("a")) is None
    assert controlled(settings(slos=SLO)) is None
    assert controlled(settings(policy=static), operator("a")) is None
    for given, operators in (
        (settings(policy=other), [operator("a")]),
        (settings(slos=SLO, policy=other), []),
    ):
        with pytest.raises(ConfigError, match=r"^policy mine\(5\) has nothing to steer by"):
            controlled(given, *operators)


@pytest.mark.parametrize("budget", ["auto", "1 s", None])
def test_commands_of_users_change_the_budget_only_where_it_follows_the_slo(
    monkeypatch: pytest.MonkeyPatch, budget: str | None
) -> None:
    monkeypatch.setattr(starting, "_controller", lambda *given: given[-1])
    monkeypatch.setattr(starting.configured, "machine_cores", lambda spark: f"cores of {spark}")
    monkeypatch.setattr(starting, "Commands", lambda *given: given)
    monkeypatch.setattr(starting, "CommandFiles", lambda files: f"commands in {files}")
    spark: Any = "the session"
    checkpoint: Any = SimpleNamespace(files="its files")
    controller, commands = starting._steering(
        spark, settings(budget=budget), job(), SimpleNamespace(cores=1), checkpoint  # type: ignore[arg-type]
    )  # fmt: skip
    made: Any = commands
    assert controller == "cores of the session"
    assert made[:5] == (
        "commands in its files",
        "the changes",
        controller,
        "the journal",
        "its path",
    )
    assert (made[5] == "sets the budget") is (budget == "auto")
    if budget != "auto":
        assert made[5](0.5) is None


def test_a_sink_in_real_time_is_made_ready_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(starting.configured, "sink", lambda *given: "the sink")
    readied: list[Any] = []
    flow: Any = SimpleNamespace(begin_sink=lambda *given: readied.append(given))
    any_: Any = None
    assert starting._sink(any_, settings(), any_, any_, None) == "the sink"
    assert starting._sink(any_, settings(), any_, any_, flow) == "the sink"
    assert readied == [("the sink", settings())]


def test_a_checkpoint_is_of_one_meaning_and_one_number_of_key_groups(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(starting, "meaning", lambda spark, operators: f"of {len(operators)}")
    spec = SimpleNamespace(to_json=lambda: {"kind": "join", "keys": ["integer"]})
    plan: Any = SimpleNamespace(operators=[SimpleNamespace(id="a", spec=spec, key_names=["k"])])
    spark: Any = None
    assert starting.identity(spark, plan, JobConfig("q", key_groups=64, mode="update")) == {
        "meaning": "of 1",
        "key_groups": 64,
        "mode": "update",
        "operators": {"a": {"kind": "join", "keys": ["k"], "kinds": ["integer"]}},
    }
