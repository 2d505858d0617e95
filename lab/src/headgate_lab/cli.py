"""Adds the laboratory's commands to ``headgate``: figure, loads and bench."""

from __future__ import annotations

import json
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from headgate.cli.answer import EXIT_CODES, Debug, Json, answer
from headgate.cli.input import parse_options
from headgate.cli.simulate import Out, policies_of, result_lines
from headgate.core.duration import parse_duration_s
from headgate.core.errors import ConfigError
from headgate.core.size import parse_bytes
from headgate.report import plot
from headgate.scenario.spark import engine_module
from headgate.whatif.simulate import Mode
from headgate_lab.experiments import constants, registry
from headgate_lab.experiments import loads as loads_table


class Benchmark(StrEnum):
    """Benchmarks by name."""

    AGGREGATE = "aggregate"
    CPU_COST = "cpu-cost"
    OVERHEAD = "overhead"
    KILL = "kill"
    KAFKA_KILL = "kafka-kill"
    BEHIND = "behind"
    TABLE_KILL = "table-kill"
    TWO_DRIVERS = "two-drivers"
    STORM = "storm"
    ISOLATION = "isolation"
    REPLICAS = "replicas"
    GROUPING = "grouping"
    REPARTITION = "repartition"
    SLO = "slo"
    OPERATORS = "operators"
    FLEET = "fleet"
    FLEET_UTILITY = "fleet-utility"
    HENGE = "henge"
    HOTKEY = "hotkey"
    STEADY = "steady"
    SPILL = "spill"
    FAR = "far"
    SOAK = "soak"
    PHASES = "phases"
    RESCALE = "rescale"
    TUPLE_BUFFER = "tuple-buffer"
    TOGETHER = "together"
    LATENCY = "latency"
    BACKFILL = "backfill"
    CHANGES = "changes"
    SCALE = "scale"


_COUNTED = {
    Benchmark.AGGREGATE: "repeats",
    Benchmark.CPU_COST: "seconds",
    Benchmark.OVERHEAD: "batches",
    Benchmark.KILL: "count",
    Benchmark.KAFKA_KILL: "count",
    Benchmark.BEHIND: "minutes",
    Benchmark.TABLE_KILL: "count",
    Benchmark.STORM: "count",
    Benchmark.ISOLATION: "count",
    Benchmark.REPLICAS: "seconds",
    Benchmark.GROUPING: "seconds",
    Benchmark.STEADY: "batches",
    Benchmark.SPILL: "batches",
    Benchmark.FAR: "batches",
    Benchmark.SLO: "seconds",
    Benchmark.PHASES: "seconds",
    Benchmark.HOTKEY: "seconds",
    Benchmark.OPERATORS: "repeats",
    Benchmark.FLEET: "jobs",
    Benchmark.FLEET_UTILITY: "jobs",
    Benchmark.RESCALE: "repeats",
    Benchmark.TUPLE_BUFFER: "records",
    Benchmark.TOGETHER: "seconds",
    Benchmark.LATENCY: "seconds",
    Benchmark.BACKFILL: "records",
    Benchmark.CHANGES: "count",
}
"""Parameter that ``--count`` sets in each benchmark; in others it is ``count``."""


def figure(
    name: Annotated[
        str | None, typer.Argument(help="Which figure, such as streamswitch-5.", show_default=False)
    ] = None,
    as_json: Json = False,
    out: Out = None,
    quick: Annotated[
        bool, typer.Option("--quick", help="Shorter and fewer runs; the result says by how much.")
    ] = False,
    data: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Directory of what the figure reads.")
    ] = None,
    listed: Annotated[bool, typer.Option("--list", help="List the figures.")] = False,
    debug: Debug = False,
) -> None:
    """Run a paper's figure on the simulator and print its numbers beside the paper's.

    Progress goes to stderr.
    """

    def work() -> dict[str, Any]:
        if listed:
            return {key: entry.title for key, entry in registry.entries().items()}
        if name is None:
            msg = "which figure? headgate figure --list names them."
            raise ConfigError(msg)
        module = registry.load(name)
        if out is not None:
            plot.check_target(out)
        found = registry.run(name, registry.Request(quick, data))
        if out is not None:
            plot.save(module.draw(found), out)
        return found

    answer(work, result_lines, as_json=as_json, debug=debug)


def loads(  # noqa: PLR0913, PLR0917 - as bench
    policy: Annotated[
        str, typer.Option(help="Policies to compare, such as 'unified,streamswitch(0.2)'.")
    ] = "unified,streamswitch(0.2)",
    part: Annotated[
        str,
        typer.Option(
            help="Which loads: building, aside; tails, tails-aside; traces, later (need --data)."
        ),
    ] = "building",
    mode: Annotated[
        Mode | None,
        typer.Option(
            help="tails, traces: beside constants alone, without the oracle, in this mode."
        ),
    ] = None,
    data: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Directory of the real traces.")
    ] = None,
    cache: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Keep each load's oracle and constants here.")
    ] = None,
    every: Annotated[int, typer.Option(min=1, help="Only every so many-th load.")] = 1,
    halves: Annotated[
        bool,
        typer.Option(
            "--halves", help="With --mode: the second half, beside the first half's constant."
        ),
    ] = False,
    jobs: Annotated[int | None, typer.Option(min=1, help="Processes; default: cores.")] = None,
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Run policies on many loads, beside the oracle and the best constant of equal success."""

    def work() -> dict[str, Any]:
        names = policies_of(policy)
        if mode is not None or part in constants.PARTS:
            batches = mode is Mode.MICRO_BATCH
            return constants.measure(
                names, part, batches=batches, data=data, every=every, jobs=jobs, halves=halves
            )
        return loads_table.measure(names, part, data=data, cache=cache, every=every, jobs=jobs)

    answer(work, result_lines, as_json=as_json, debug=debug)


def bench(  # noqa: PLR0913, PLR0917 - as run
    name: Annotated[Benchmark, typer.Argument(help="Which benchmark.")],
    as_json: Json = False,
    count: Annotated[
        int | None, typer.Option(min=1, help="Repetitions, batches or kills; see docs.")
    ] = None,
    seed: Annotated[int | None, typer.Option(min=0, help="Seed of the load.")] = None,
    state: Annotated[
        str | None,
        typer.Option(
            metavar="SIZE", help="repartition, rescale, steady, spill, far: size of the state."
        ),
    ] = None,
    only: Annotated[
        str | None,
        typer.Option(
            help="rescale: decoupling,scheduling,subscale,all,none; operators: processor, windows, "
            "join, counts, operator6, scalejoin, memory; henge: 9,11,12,13,17; soak: with, without; "
            "storm: aggregates,join,processor,group-state,duplicates; cpu-cost: processor,udf,"
            "varied,store."
        ),
    ] = None,
    store_delay: Annotated[
        str | None,
        typer.Option(metavar="TIME", help="steady: what a call to the store takes more."),
    ] = None,
    cluster: Annotated[
        bool, typer.Option("--cluster", help="kill: on a cluster, workers and executors too.")
    ] = False,
    policies: Annotated[
        str | None,
        typer.Option(metavar="POLICY,POLICY", help="cpu-cost, slo: who decides."),
    ] = None,
    seconds: Annotated[
        float | None, typer.Option(min=1, help="cpu-cost, slo, phases: length of each run.")
    ] = None,
    option: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=VALUE", help="Another parameter of it; repeatable."),
    ] = None,
    debug: Debug = False,
) -> None:
    """Measure headgate on this machine, side by side with what it is compared with."""
    module: Any = None

    def show(found: dict[str, Any]) -> list[str]:
        lines: list[str] = getattr(module, "lines", _plain_items)(found)
        return lines

    def work() -> dict[str, Any]:
        if cluster and name is not Benchmark.KILL:
            msg = f"--cluster is for bench kill; bench {name.value} chooses its own cluster."
            raise ConfigError(msg)
        nonlocal module
        module = engine_module(_bench_module(name, cluster=cluster))
        counted = {_COUNTED[name]: count} if name in _COUNTED else {"count": count}
        sizes = {"state": state, "store_delay": store_delay, "only": only}
        if state is not None:
            parse_bytes(state)
        if store_delay is not None:
            parse_duration_s(store_delay, zero=True)
        runs = {"policies": policies, "seconds": seconds}
        named = {**counted, "seed": seed, **sizes}
        given = [*named.items(), *runs.items(), *parse_options(option or ()).items()]
        return dict(module.run(**{key: value for key, value in given if value is not None}))

    answer(work, show, as_json=as_json, debug=debug)


def _bench_module(name: Benchmark, *, cluster: bool) -> str:
    if name is Benchmark.OPERATORS:
        # In a layer above the engine: some of its parts measure processes without Spark.
        return "headgate_lab.experiments.operators"
    if name is Benchmark.TUPLE_BUFFER:
        # Without Spark: it measures processes and shared memory only.
        return "headgate_lab.experiments.stretch.tuple_buffer"
    module = "cluster_kill" if cluster else name.value.replace("-", "_")
    return f"headgate_lab.bench.{module}"


def _plain_items(result: dict[str, Any]) -> list[str]:
    """Return a flat or nested result as lines of names and values."""
    width = max((len(name) for name in result), default=0)
    return [
        f"{name:<{width}}  {value if isinstance(value, str) else json.dumps(value, default=str)}"
        for name, value in result.items()
    ]


def register(app: typer.Typer) -> None:
    """Add the commands; the entry point ``headgate.commands`` names this function."""
    app.command(epilog=EXIT_CODES)(figure)
    app.command(epilog=EXIT_CODES)(loads)
    app.command(epilog=EXIT_CODES)(bench)
