"""A policy that steers by what records cost, on Spark; and how the benchmark judges what is believed."""

from __future__ import annotations

import dataclasses
import gzip
import time

import numpy as np
import pytest

from headgate.core.errors import ConfigError
from headgate.journal.schema import Batch
from headgate.workloads.rates import parse_rate
from headgate_lab.bench import cpu_cost
from headgate_lab.bench.cpu_cost import Belief, CpuCostParameters, error, judged
from headgate_lab.bench.cpu_jobs import JOBS, Cost, Truth

BASE_S = 1_000.0


@pytest.mark.thorough
def test_slots_follow_a_load_of_records_that_wait_for_a_store():
    # 5 ms a record: one slot is full with the calm load, and cannot serve the burst
    found = cpu_cost.run(
        seconds=15.0, only="store", policies="threshold", cost="5 ms", slo="mean < 2 s over 1 s"
    )
    ran = found["jobs"]["store"]["policies"]["threshold"]
    assert ran["changes"] >= 1
    assert ran["slots_mean"] > 1.2
    assert ran["records"] > 500
    assert ran["estimate"]["record"]["median"] < 0.3
    # of a short run on a slow machine there are too few batches to say anything
    assert ran["predicted"] is None or ran["predicted"]["model"]["slots_mean"] > 1.0
    text = "\n".join(cpu_cost.lines(found))
    assert "store: cost off by" in text
    assert "threshold" in text


def cost(tmp_path, **changed):
    made = Cost(0.002, 100, False, round(BASE_S * 1e6), 20.0, str(tmp_path / "truth"))
    return dataclasses.replace(made, **changed)


def batch(at_s, served=100, slots=2, backlog=50):
    return Batch(
        step=1, spark_batch=1, epoch=1, slots=slots, duration_ms=500.0, phases_ms={}, arrived=100,
        served=served, emitted=0, late=0, backlog=backlog, backlog_bytes=0,
        at_ms=int((BASE_S + at_s) * 1e3),
    )  # fmt: skip


def truth(unit_s=0.002, computed=0.9):
    at_s = BASE_S + np.arange(0.0, 20.0, 0.5)
    units = np.full(len(at_s), 50.0)
    return Truth(at_s, units, units, unit_s * units, computed * unit_s * units)


def test_where_records_differ_few_make_half_of_the_cost(tmp_path):
    varied = cost(tmp_path, varied=True)
    units = np.array([varied.units(number, varied.base_us) for number in range(100_000)])
    assert units.mean() == pytest.approx(1.0, rel=0.02)
    assert units.max() / units.min() == pytest.approx(100.0)
    assert (units > units.min()).mean() == pytest.approx(0.01, rel=0.02)
    assert varied.units(7, varied.base_us + 20_000_000) == 2.0 * varied.units(7, varied.base_us)
    assert cost(tmp_path).units(7, varied.base_us) == 1.0


def test_what_workers_write_down_is_read_again(tmp_path):
    one = cost(tmp_path)
    assert len(Truth.read(tmp_path / "truth").at_s) == 0
    one.tell(3, 4.0, one.clock())
    one.tell(5, 6.0, one.clock())
    with (tmp_path / "truth").open("ab") as file:
        file.write(b"half a line")
    found = Truth.read(tmp_path / "truth")
    assert (found.records.tolist(), found.units.tolist()) == ([3.0, 5.0], [4.0, 6.0])
    assert found.unit_s(time.time() + 1.0, 60.0) is not None
    assert found.unit_s(BASE_S, 60.0) is None


def test_a_cost_is_judged_against_what_records_took_just_before(tmp_path):
    seen = [Belief(BASE_S + at_s, 2, 500.0, 0.003, 0.8) for at_s in (1.0, 5.0, 10.0)]
    found = judged(JOBS["processor"], cost(tmp_path), seen, [], truth())
    assert found["record"] == [0.5, 0.5]  # not of the first seconds
    assert found["cpu"] == pytest.approx([0.003 * 0.8 / (0.002 * 0.9) - 1.0] * 2, abs=1e-3)
    assert judged(JOBS["udf"], cost(tmp_path), seen, [], truth())["record"] == []
    drifted = judged(JOBS["varied"], cost(tmp_path, varied=True), seen, [], truth())
    assert drifted["record"] == pytest.approx([1.5 / 1.25 - 1.0, 0.0], abs=1e-3)


def test_a_capacity_is_judged_where_records_waited_all_the_time(tmp_path):
    seen = [Belief(BASE_S + 10.0, 2, 300.0, None, None)]

    def capacity(batches):
        return judged(JOBS["udf"], cost(tmp_path), seen, batches, truth())["capacity"]

    full = [batch(at_s) for at_s in (8.0, 8.5, 9.0, 9.5)]
    assert capacity(full) == [0.5]  # 200 records/s
    assert capacity(full[1:]) == []
    assert capacity([*full[:3], batch(9.5, backlog=0)]) == []
    assert capacity([*full[:3], batch(9.5, slots=3)]) == []


def test_an_error_has_a_median_a_percentile_and_a_side():
    found = error([{"record": [0.1, -0.2]}, {"record": [-0.3]}], "record")
    assert found == {"median": 0.2, "p90": 0.28, "bias": -0.2, "cycles": 3}
    assert error([{"record": []}], "record") is None


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"only": "procesor"}, 'no job "procesor"; there are processor, udf'),
        ({"policies": "streamswich"}, "streamswitch"),
        ({"policies": " , "}, "names none"),
        ({"seconds": 4.0}, "must be above 4"),
        ({"slots": 9}, "out of range"),
        ({"cost": "0 ms"}, "not above zero"),
        ({"scale": 0.0}, "must be above 0"),
    ],
)
def test_what_cannot_be_run_is_refused_before_anything_runs(given, message):
    with pytest.raises(ConfigError, match=message):
        cpu_cost.run(**given)


def test_orders_follow_the_minutes_of_a_real_trace(tmp_path):
    counts = np.arange(1, 100_000)
    text = "minute,requests\n" + "".join(f"{n},{count}\n" for n, count in enumerate(counts))
    with gzip.open(tmp_path / "worldcup98.per_minute.csv.gz", "wt") as file:
        file.write(text)
    chosen = CpuCostParameters(seconds=20.0, data=str(tmp_path), scale=2.0)
    rate = parse_rate(cpu_cost.load(JOBS["processor"], chosen))
    assert rate.rate_at(19.5) == pytest.approx(2.0 * 1.1 / 0.002, rel=0.001)
    assert rate.rate_at(0.5) < rate.rate_at(19.5)
    with pytest.raises(ConfigError, match="there is no"):
        cpu_cost.load(JOBS["processor"], CpuCostParameters(data=str(tmp_path / "none")))
