"""Juice: Henge section 6."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headgate.control.fleet.juice import Flow, job_juice, operator_juice
from headgate.core.errors import ConfigError
from headgate_lab.sim.fleet.juice_window import JuiceWindow

K = 1000.0

#        ┌─ 8K ─► B ─ 8K ─┐
#  A 10K ┤                ├─► D          C processes 6K of its 8K
#        └─ 8K ─► C ─ 6K ─┘
FIGURE_2 = [
    Flow("A", "B", sent=8 * K, executed=8 * K),
    Flow("A", "C", sent=8 * K, executed=6 * K, waiting=2 * K),
    Flow("B", "D", sent=8 * K, executed=8 * K),
    Flow("C", "D", sent=6 * K, executed=6 * K),
]


def test_figure_2_gives_the_papers_numbers() -> None:
    assert operator_juice(FIGURE_2) == {"A": 1.0, "B": 0.5, "C": 0.375, "D": 0.875}
    assert job_juice(FIGURE_2) == 0.875


def test_two_sources_and_two_sinks_are_normalised_by_the_sources() -> None:
    flows = [
        Flow("s1", "m", 100, 100),
        Flow("s2", "m", 300, 150, waiting=150),
        Flow("m", "x", 80, 80),
        Flow("m", "y", 80, 40, waiting=40),
    ]
    assert operator_juice(flows)["m"] == 1.5
    assert job_juice(flows) == pytest.approx((1.5 * 0.5 + 1.5 * 0.25) / 2)


def test_duplication_and_filters_leave_juice_alone() -> None:
    flows = [
        Flow("s", "copy", 100, 100),
        Flow("copy", "a", 100, 100),
        Flow("copy", "b", 100, 100),
        Flow("a", "sink", 3, 3),
        Flow("b", "sink", 0, 0),
    ]
    assert job_juice(flows) == 1.0


def test_records_lost_by_the_network_lower_juice() -> None:
    assert job_juice([Flow("s", "sink", sent=100, executed=90)]) == 0.9


@st.composite
def quiet_graphs(draw: st.DrawFn) -> list[Flow]:
    """Random acyclic graphs, several spouts, where whatever is sent is processed."""
    size = draw(st.integers(2, 8))
    edges = draw(
        st.sets(st.tuples(st.integers(0, 7), st.integers(0, 7)), min_size=1).map(
            lambda pairs: {(a % size, b % size) for a, b in pairs if a % size < b % size}
        )
    )
    counts = st.integers(0, 1000)
    return [Flow(str(a), str(b), n, n) for a, b in sorted(edges) for n in [float(draw(counts))]]


@given(flows=quiet_graphs())
def test_juice_is_one_where_nothing_waits_whatever_the_graph(flows: list[Flow]) -> None:
    assert job_juice(flows) == pytest.approx(1.0)


@given(flows=quiet_graphs(), data=st.data())
def test_juice_stays_between_zero_and_one_whatever_is_served(
    flows: list[Flow], data: st.DataObject
) -> None:
    served = [
        Flow(f.parent, f.child, f.sent, data.draw(st.floats(0, 5000)), data.draw(st.floats(0, 9)))
        for f in flows
    ]
    assert 0.0 <= job_juice(served) <= 1.0
    spouts = {f.parent for f in flows} - {f.child for f in flows}
    assert max(operator_juice(served).values(), default=0.0) <= len(spouts) + 1e-9


def test_a_queue_that_drains_makes_up_for_nothing_else() -> None:
    #  B works off its queue (20 of 10 sent) while C is stuck: still only half is processed.
    flows = [Flow("A", "B", 10, 20), Flow("A", "C", 10, 0, waiting=10)]
    assert job_juice(flows) == 0.5
    assert job_juice([Flow("s", "sink", sent=10, executed=30)]) == 1.0


def test_a_parent_that_sent_nothing_is_complete_unless_its_records_wait() -> None:
    assert job_juice([Flow("s", "sink", 0, 0)]) == 1.0
    assert job_juice([Flow("s", "sink", 0, 0, waiting=5)]) == 0.0
    assert job_juice([Flow("s", "sink", 0, 3, waiting=5)]) == 1.0
    assert job_juice([Flow("s", "a", 0, 0), Flow("s", "b", 0, 0, waiting=5)]) == 0.5
    split = operator_juice([Flow("s", "a", 0, 0), Flow("s", "b", 0, 0)])
    assert split == {"s": 1.0, "a": 0.5, "b": 0.5}


def test_a_job_of_one_operator_has_full_juice() -> None:
    assert job_juice([]) == 1.0


def test_weights_say_how_much_each_sink_counts() -> None:
    flows = [Flow("s", "paid", 50, 50), Flow("s", "free", 50, 0, waiting=50)]
    assert job_juice(flows) == 0.5
    assert job_juice(flows, {"paid": 3.0}) == 0.75
    assert job_juice(FIGURE_2, {"D": 7.0}) == 0.875


def test_a_weight_that_fits_no_sink_is_refused() -> None:
    with pytest.raises(ConfigError, match='"B", which is no sink; use D'):
        job_juice(FIGURE_2, {"B": 2.0})
    with pytest.raises(ConfigError, match="weight of D"):
        job_juice(FIGURE_2, {"D": 0.0})


def test_a_cycle_is_refused() -> None:
    with pytest.raises(ConfigError, match="form a cycle"):
        job_juice([Flow("a", "b", 1, 1), Flow("b", "a", 1, 1), Flow("b", "c", 1, 1)])


def test_the_window_slides_by_sub_windows() -> None:
    #  sub-windows  1   2   3   4   5   6 | 7
    #  executed     0   10  10  10  10  10| 10      the bad first one leaves with the seventh
    window = JuiceWindow(subwindows=6)
    window.add([Flow("s", "sink", 10, 0, waiting=10)])
    for _ in range(5):
        window.add([Flow("s", "sink", 10, 10, waiting=10)])
    assert window.juice() == pytest.approx(5 / 6)
    window.add([Flow("s", "sink", 10, 10, waiting=10)])
    assert window.juice() == 1.0
    assert window.flows() == [Flow("s", "sink", 60, 60, waiting=10)]


def test_a_burst_served_within_the_window_costs_no_juice() -> None:
    window = JuiceWindow()
    for sent, executed in [(10, 10), (40, 25), (10, 25), (10, 10)]:
        window.add([Flow("s", "sink", sent, executed)])
    assert window.juice() == 1.0


def test_a_window_without_sub_windows_is_refused() -> None:
    with pytest.raises(ConfigError, match="subwindows=0"):
        JuiceWindow(0)
