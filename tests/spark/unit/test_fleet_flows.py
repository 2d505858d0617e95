"""What a fleet takes for the flow along each edge of a query, what its sources still have counted in.

Steps are told, not run, on a clock of their own; each expectation is worked out by hand.
"""

from __future__ import annotations

import math
from types import SimpleNamespace

import pytest

from headgate.control.fleet.juice import job_juice
from headgate.operators.step import InputCounts
from headgate.spark.fleet.flows import Entrance, Graph, Read, Span, Told, flows_of, told
from headgate.spark.fleet.lag import SourceLag, distance

ONE = Graph((Entrance("op", 0, "source of op", (0,)),), {})


def read(batch, read_s, done_s, put_out=0, newest_s=math.nan, **counts):
    """Return a step; `counts` has (arrived, executed) or a list of them by operator."""
    operators = {}
    for name, found in counts.items():
        inputs = found if isinstance(found, list) else [found]
        both = tuple(InputCounts(new, done, newest_s * 1e3) for new, done in inputs)
        operators[name] = Told(both, put_out)
    return Read(batch, read_s, done_s, operators)


def span(*reads, now_s=None, read_s=None):
    """Return a window that begins with the commit of the first step."""
    last = reads[-1]
    return Span(reads[0], reads[1:], read_s or last.read_s, now_s or last.done_s)


def juice(graph, window, lag=None, waiting=None):
    return job_juice(flows_of(graph, window, waiting or {}, lag or SourceLag())[0])


def progress(batch, *sources):
    """Return Spark's progress; each source is (start, end, latest, rows)."""
    names = ("startOffset", "endOffset", "latestOffset", "numInputRows")
    rows = [dict(zip(names, source, strict=True)) for source in sources]
    return {"batchId": batch, "sources": rows}


def test_a_job_that_keeps_up_has_juice_one_however_long_its_batches_are():
    steps = [read(n, 2.0 * n, 2.0 * n + 1.9, op=(200, 200)) for n in range(6)]
    assert juice(ONE, span(*steps)) == 1.0


def test_batches_that_take_longer_each_time_leave_more_at_the_source():
    # 100 records/s come, 50 are served: each batch takes twice as long as the one before it.
    begins, lengths = [0.0, 1.0, 3.0, 7.0], [1.0, 2.0, 4.0, 8.0]
    steps = [
        read(n, at, at + took, op=(int(50 * took), int(50 * took)))
        for n, (at, took) in enumerate(zip(begins, lengths, strict=True))
    ]
    # from the commit at 1 s to that at 15 s 1,400 records came, and 700 were served
    assert juice(ONE, span(*steps)) == pytest.approx(0.5)


def test_a_batch_that_takes_much_longer_than_those_before_it_counts_while_it_runs():
    steps = [read(n, float(n), n + 0.5, op=(100, 100)) for n in range(11)]
    assert juice(ONE, span(*steps, now_s=11.4)) == 1.0
    # read at 10 s; a batch is usually over 1.5 s after the one before was read
    assert juice(ONE, span(*steps, now_s=21.5)) == pytest.approx(1000 / 2000)


def test_a_source_that_was_seen_to_be_quiet_has_nothing():
    steps = [read(n, float(n), n + 0.5, op=(100, 100)) for n in range(11)]
    assert juice(ONE, span(*steps, now_s=51.0, read_s=50.5)) == 1.0


def test_a_source_whose_batches_are_limited_tells_what_it_has_beyond_them():
    # Kafka's offsets by partition: 1,000 records come in a second, 400 are read.
    lag = SourceLag()
    steps = [read(n, float(n), n + 0.5, op=(400, 400)) for n in range(6)]
    for n in range(6):
        ends = [{"clicks": {"0": 200 * m, "1": 200 * m}} for m in (n, n + 1)]
        newest = {"clicks": {"0": 500 * (n + 1), "1": 500 * (n + 1)}}
        lag.note(progress(n, (*ends, newest, 400)))
    flows, per_s = flows_of(ONE, span(*steps), {}, lag)
    assert job_juice(flows) == pytest.approx(0.4)
    assert per_s == pytest.approx(1000.0)


def test_offsets_that_do_not_count_records_are_taken_by_the_records_they_brought():
    # one file of 50 records a batch; two files come meanwhile
    lag = SourceLag()
    steps = [read(n, float(n), n + 0.5, op=(50, 50)) for n in range(5)]
    for n in range(5):
        lag.note(
            progress(n, (f'{{"file":{n}}}', f'{{"file":{n + 1}}}', f'{{"file":{2 * n + 2}}}', 50))
        )
    assert juice(ONE, span(*steps), lag) == pytest.approx(0.5)


def test_records_that_are_older_in_every_batch_tell_that_more_wait():
    # of four seconds' arrivals each batch of a second brings one second's
    steps = [read(n, 4.0 * n, 4.0 * n + 1, newest_s=1.0 * n, op=(100, 100)) for n in range(5)]
    assert juice(ONE, span(*steps)) == pytest.approx(0.25)


def test_records_that_arrive_late_by_the_same_time_do_not():
    steps = [read(n, float(n), n + 0.5, newest_s=n - 90.0, op=(100, 100)) for n in range(5)]
    assert juice(ONE, span(*steps)) == 1.0


def test_the_sides_of_a_join_are_two_sources():
    sides = (Entrance("join", 0, "left", (0,)), Entrance("join", 1, "right", (1,)))
    steps = [read(n, float(n), n + 0.5, join=[(100, 100), (10, 5)]) for n in range(5)]
    # together they would be 105 of 110
    assert juice(Graph(sides, {}), span(*steps)) == pytest.approx((1.0 + 0.5) / 2)


def test_a_side_of_a_join_to_which_nothing_came_is_complete():
    sides = (Entrance("join", 0, "left"), Entrance("join", 1, "right"))
    steps = [read(n, float(n), n + 0.5, join=[(100, 50), (0, 0)]) for n in range(3)]
    waiting = {("join", 0): 100.0}
    assert juice(Graph(sides, {}), span(*steps), waiting=waiting) == pytest.approx(0.75)


def test_streams_that_are_merged_below_an_operator_are_sources_of_their_own():
    lag = SourceLag()
    merged = Graph((Entrance("op", 0, "source", (0, 1)),), {})
    steps = [read(n, float(n), n + 0.5, op=(400, 400)) for n in range(5)]
    for n in range(5):  # the second source has twice as many as are read of it
        lag.note(progress(n, (n, n + 1, n + 1, 300), (n, n + 1, 2 * (n + 1), 100)))
    # all of the first's 300 a second, half of the second's 200
    assert juice(merged, span(*steps), lag) == pytest.approx((1.0 + 0.5) / 2)


def test_a_source_that_feeds_two_operators_is_one_parent():
    fork = Graph((Entrance("a", 0, "source", (0,)), Entrance("b", 0, "source", (0,))), {})
    steps = [read(n, float(n), n + 0.5, a=(300, 300), b=(100, 50)) for n in range(3)]
    lag = SourceLag()
    lag.note(progress(0, (0, 1, 1, 400)))
    assert juice(fork, span(*steps), lag) == pytest.approx(350 / 400)


def test_what_a_parent_sent_is_counted_where_it_sent_it():
    # 40 rows left the first operator, 30 came to the second: a loss on the way shows
    steps = [read(n, float(n), n + 0.5, 40, first=(40, 40), second=(30, 30)) for n in range(3)]
    entrance = (Entrance("first", 0, "source"),)
    edges = {"second": "first"}
    assert juice(Graph(entrance, edges, {"second"}), span(*steps)) == pytest.approx(0.75)
    # with a filter between them that is what the user wrote
    assert juice(Graph(entrance, edges), span(*steps)) == 1.0


def test_a_record_that_is_turned_away_as_late_was_processed():
    one = {"operator": "op", "output_rows": 3, "inputs": ()}
    reports = [SimpleNamespace(arrived=100, served=60, late_records=40, **one)] * 2
    (found,) = told(reports).values()
    assert (found.inputs[0].arrived, found.inputs[0].executed, found.put_out) == (200, 200, 6)


@pytest.mark.parametrize(
    ("start", "end", "far"),
    [
        (3, 10, 7.0),
        ("3", "10", 7.0),
        ('{"offset":[1,2]}', '{"offset":[2,4]}', 3.0),
        ({"t": {"0": 5}}, {"t": {"0": 6, "1": 100}}, 1.0),
        (None, 10, 0.0),
        ("abc", "abd", 0.0),
        (10, 3, 0.0),
        (True, 5, 0.0),
    ],
)
def test_offsets_are_as_far_apart_as_their_numbers(start, end, far):
    assert distance(start, end) == far


def test_of_the_first_window_the_input_rate_is_what_arrived_by_how_long_its_batch_took():
    # the batch took four seconds, and two seconds more than that have passed since what it read
    window = Span(None, (read(0, 10.0, 14.0, op=(200, 200)),), 10.0, 16.0)
    flows, per_s = flows_of(ONE, window, {}, SourceLag())
    assert per_s == pytest.approx(200 / 4.0)
    assert flows[0].sent == pytest.approx(200 + 50.0 * 2.0)


@pytest.mark.parametrize(("rows", "shares"), [((300, 100), (0.75, 0.25)), ((0, 0), (0.5, 0.5))])
def test_what_arrived_is_the_sources_by_the_rows_they_brought(rows, shares):
    lag = SourceLag()
    for n in range(1, 3):
        lag.note(progress(n, ("", "", None, rows[0]), ("", "", None, rows[1])))
    two = Graph((Entrance("op", 0, "sources of op", (0, 1)),), {})
    flows, _ = flows_of(
        two, span(*[read(n, float(n), n + 0.5, op=(100, 80)) for n in range(3)]), {}, lag
    )
    executed = sum(flow.executed for flow in flows)
    assert executed == pytest.approx(160)
    assert tuple(flow.executed / executed for flow in flows) == pytest.approx(shares)
