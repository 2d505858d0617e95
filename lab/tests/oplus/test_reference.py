"""O+ against a dictionary keyed by (key, window) and a nested loop; and each slip of the paper.

A test named after a slip fails on the form printed in STRETCH.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headgate.core.errors import ConfigError, ProtocolError
from headgate.operators.operator_plus import (
    Key,
    OperatorPlus,
    Record,
    Watermark,
    Window,
    WindowType,
)
from headgate_lab.oplus import library
from headgate_lab.oplus.reference import Epoch, Instance, WindowState, run
from headgate_lab.oplus.streams import (
    ExplicitWatermark,
    TimeOrder,
    merged,
    ready_time,
    route,
)


def letters(record: Record) -> str:
    return record.payload[0]


def text(time: int, words: str) -> Record:
    return Record(time, ("someone", words))


def counts(advance: int, size: int) -> OperatorPlus:
    return library.aggregate(advance, size, letters, lambda n, _: (n or 0) + 1, int)


def answers(records: list[Record]) -> Counter[tuple[int, object]]:
    return Counter((record.time, record.payload) for record in records)


def window_contents(
    operator: OperatorPlus, records: Iterable[Record]
) -> dict[tuple[Key, int], list[Record]]:
    """Return the records that fall in each window, by (key, left boundary), in the order given.

    A window ``[l, l + WS)`` is found by trying the multiples of WA around a record's time.
    """
    advance, size = operator.window_advance, operator.window_size
    contents: dict[tuple[Key, int], list[Record]] = {}
    for record in records:
        around = range(record.time // advance - size // advance - 1, record.time // advance + 2)
        for index in around:
            left = index * advance
            if left <= record.time < left + size:
                for key in operator.keys_of(record):
                    contents.setdefault((key, left), []).append(record)
    return contents


def nested_loop(
    left: Sequence[Record],
    right: Sequence[Record],
    within: int,
    match: Callable[[Record, Record], bool],
) -> list[tuple[Record, Record]]:
    """Return the pairs that match and are at most `within` apart in time."""
    return [
        (x, y) for x, y in product(left, right) if abs(x.time - y.time) <= within and match(x, y)
    ]


def expected_counts(operator: OperatorPlus, records: list[Record]) -> Counter[tuple[int, object]]:
    contents = window_contents(operator, records)
    size = operator.window_size
    return Counter((left + size, (key, len(rs))) for (key, left), rs in contents.items())


sorted_records = st.lists(
    st.tuples(st.integers(-40, 40), st.text("abc", max_size=3)), max_size=25
).map(lambda pairs: [Record(t, (w,)) for t, w in sorted(pairs)])
windows = st.integers(1, 12).flatmap(lambda s: st.tuples(st.integers(1, s), st.just(s)))


@given(sorted_records, windows)
def test_multi_windows_count_what_the_dictionary_counts(records, shape):
    operator = counts(*shape)
    emitted = run(operator, [*records, Watermark(1000)])
    assert answers(emitted) == expected_counts(operator, records)


@given(sorted_records, windows)
def test_a_single_window_that_slides_gives_what_multi_windows_give(records, shape):
    single = library.single_aggregate(*shape, letters, len)
    emitted = run(single, [*records, Watermark(1000)])
    assert answers(emitted) == expected_counts(single, records)


@given(st.permutations(range(12)), windows, st.randoms(use_true_random=False))
def test_disorder_under_explicit_watermarks_changes_no_count(order, shape, random):
    # The watermark lags: after each record it is the least time still to come.
    records = [Record(3 * i - 15, ("ab"[i % 2],)) for i in order]
    operator = counts(*shape)
    instance = Instance(operator, WindowState())
    emitted = []
    for position, record in enumerate(records):
        emitted += instance.update(record)
        left = [r.time for r in records[position + 1 :]]
        if random.random() < 0.5 and left:
            emitted += instance.advance(min(left))
    emitted += instance.advance(1000)
    assert answers(emitted) == expected_counts(operator, records)


def test_slip_a_window_is_found_by_its_boundary_not_by_its_position():
    # Algorithm 2, line 28 takes sigma[k][l] with l counted from tau_1. Under a lagging watermark the
    # key's first live window is older, and that form counts the record at 50 into [0, 20):
    #
    #   a at 5         [-10,10) [0,20)
    #   a at 50                              [40,60) [50,70)
    operator = counts(10, 20)
    instance = Instance(operator, WindowState())
    instance.update(Record(5, ("a",)))
    instance.update(Record(50, ("a",)))
    emitted = instance.advance(1000)
    assert [(r.time, r.payload[1]) for r in emitted] == [(10, 1), (20, 1), (60, 1), (70, 1)]


def test_slip_a_window_expires_when_the_watermark_is_its_right_boundary():
    # Algorithms 2 and 4 say rho + WS < W.
    instance = Instance(counts(10, 10), WindowState())
    instance.process(Record(3, ("a",)))
    assert instance.advance(9) == []
    assert instance.advance(10) == [Record(10, ("a", 1))]


def test_slip_expiry_does_not_walk_from_zero_to_real_times():
    # Algorithm 2 steps rho from 0 by WA: 1.7e15 steps for microseconds of today.
    now = 1_700_000_000_000_000
    assert run(counts(1, 2), [Record(now, ("a",)), Watermark(now + 5)]) == [
        Record(now + 1, ("a", 1)),
        Record(now + 2, ("a", 1)),
    ]


def test_windows_before_the_epoch_are_windows():
    assert run(counts(10, 10), [Record(-5, ("a",)), Watermark(0)]) == [Record(0, ("a", 1))]


def test_slip_update_is_given_the_record_and_output_the_aggregate():
    # Algorithm 2, line 28 calls f_U without t; operators 1 and 4 call the update f_A and the result f_R.
    seen = []

    def fold(state, record):
        seen.append(("update", record.payload))
        return (state or 0) + 1

    def result(state):
        seen.append(("output", state))
        return state

    run(library.aggregate(10, 10, letters, fold, result), [Record(1, ("a",)), Watermark(10)])
    assert seen == [("update", ("a",)), ("output", 1)]


@given(sorted_records, windows)
def test_every_output_is_later_than_the_watermark_before_it(records, shape):
    # Observation 1 and lemma 2 for f_O: the times of outputs are valid watermarks.
    instance = Instance(counts(*shape), WindowState())
    last = before = instance.watermark
    for item in [*records, Watermark(1000)]:
        for record in instance.process(item):
            assert record.time > before
            assert record.time >= last
            last = record.time
        before = instance.watermark


@given(sorted_records, windows)
def test_outputs_of_a_single_window_join_never_go_back_in_time(records, shape):
    emitted = run(library.join(*shape, letters, lambda x, y: True), two_inputs(records))
    assert [r.time for r in emitted] == sorted(r.time for r in emitted)


def test_slip_lemma_2_is_false_for_what_update_emits_into_several_windows():
    # WA = 30, WS = 60: both records fall in [30, 90) and in [60, 120).
    echo = OperatorPlus(
        30,
        60,
        lambda record: ["k"],
        WindowType.MULTI,
        ("x",),
        update=lambda windows, record: ([1], [record.payload]),
    )
    times = [r.time for r in run(echo, [Record(65, (1,)), Record(70, (2,))])]
    assert times == [90, 120, 90, 120]


def two_inputs(records: list[Record]) -> list[Record]:
    return [Record(r.time, (*r.payload, i), i % 2) for i, r in enumerate(records)]


def sides(records: list[Record]) -> tuple[list[Record], list[Record]]:
    return [r for r in records if r.input == 0], [r for r in records if r.input == 1]


@given(sorted_records, windows)
def test_a_multi_window_join_emits_a_pair_in_each_window_that_holds_both(records, shape):
    records = two_inputs(records)
    operator = library.join(*shape, lambda r: ["k"], lambda x, y: x.payload[0] == y.payload[0],
                            WindowType.MULTI)  # fmt: skip
    expected: Counter[object] = Counter()
    for (_, left), contents in window_contents(operator, records).items():
        for x, y in nested_loop(*sides(contents), 10**6, lambda x, y: x.payload[0] == y.payload[0]):
            expected[left + operator.window_size, (x.payload, y.payload)] += 1
    assert answers(run(operator, records)) == expected


def near(x: Record, y: Record) -> bool:
    return x.payload[0][:1] == y.payload[0][:1]


def pairs_of(emitted: list[Record]) -> Counter[object]:
    return Counter(record.payload for record in emitted)


@given(sorted_records, st.integers(1, 15), st.booleans())
def test_scale_join_finds_the_pairs_of_the_nested_loop(records, size, inclusive):
    # Few virtual keys on few records: with keys 1 to n against c % n (the slip) key n stores nothing,
    # and with counters that go when their queue is empty records are stored twice or never.
    records = two_inputs(records)
    operator = library.scale_join(size, 5, near, inclusive=inclusive)
    reach = size if inclusive else size - 1
    expected = Counter((x.payload, y.payload) for x, y in nested_loop(*sides(records), reach, near))
    assert pairs_of(run(operator, records)) == expected


def test_scale_join_stores_each_of_two_thousand_records_once():
    # By the printed keys 1 to n against c % n every n-th record would be missing.
    records = [Record(i // 3, (i,), i % 2) for i in range(2100)]
    close = lambda x, y: abs(x.payload[0] - y.payload[0]) < 9  # noqa: E731
    expected = Counter((x.payload, y.payload) for x, y in nested_loop(*sides(records), 3, close))
    assert pairs_of(run(library.scale_join(4, 10, close), records)) == expected


@pytest.mark.timeout(20)
def test_a_window_that_emits_nothing_crosses_a_long_gap_in_one_step():
    operator = library.scale_join(10, 3, lambda x, y: True)
    later = 10**15
    records = [Record(0, ("l",), 0), Record(later, ("l",), 0), Record(later + 9, ("r",), 1)]
    assert [r.time for r in run(operator, records)] == [later + 10]


def many_records() -> list[Record]:
    # Bursts with gaps longer than the window, so that queues run empty.
    return [Record(i + 50 * (i // 7), (i,), i % 2) for i in range(60)]


@pytest.mark.parametrize("mutant", ["keys from 1", "counter lost"])
def test_slip_the_printed_scale_join_loses_pairs(mutant):
    records = many_records()
    good = library.scale_join(20, 5, lambda x, y: True)

    def forgets(windows):
        kept = good.slide(windows)
        return kept if any(stored for _, stored in kept) else [None, None]

    printed = OperatorPlus(
        1,
        20,
        (lambda record: range(1, 6)) if mutant == "keys from 1" else good.keys,
        WindowType.SINGLE,
        good.schema,
        inputs=2,
        update=good.update,
        slide=forgets if mutant == "counter lost" else good.slide,
    )
    wanted = pairs_of([Record(0, (x.payload, y.payload))
                       for x, y in nested_loop(*sides(records), 19, lambda x, y: True)])  # fmt: skip
    assert pairs_of(run(good, records)) == wanted
    assert pairs_of(run(printed, records)) != wanted


def test_records_exactly_one_window_size_apart_meet_only_where_that_is_asked_for():
    records = [Record(0, ("l",), 0), Record(10, ("r",), 1)]
    assert run(library.scale_join(10, 3, lambda x, y: True), records) == []
    both = library.scale_join(10, 3, lambda x, y: True, inclusive=True)
    assert [r.payload for r in run(both, records)] == [(("l",), ("r",))]


def test_execution_trace_1_the_longest_tweet_of_a_hashtag():
    # Appendix E, minutes of the day: 09:00 is 540.
    operator = library.longest_tweet(30, 60)
    state = WindowState()
    instance = Instance(operator, state, watermark=540)
    for left in (540, 570):
        state.put("pink", left, [11])
    emitted = instance.process(Record(598, ("C", "hi #red #pink")))
    assert emitted == []
    assert instance.watermark == 598
    assert [state.states("pink", left) for left in state.lefts("pink")] == [(13,), (13,)]
    assert state.lefts("red") == [540, 570]
    assert instance.advance(600) == [Record(600, ("pink", 13)), Record(600, ("red", 13))]


def test_a_repeated_word_counts_twice_in_a_bag_and_once_in_a_set():
    tweet = [text(5, "a a b"), Watermark(100)]
    assert run(library.word_count(10, 10), tweet) == [Record(10, ("a", 2)), Record(10, ("b", 1))]
    paper = library.word_count(10, 10, distinct=True)
    assert run(paper, tweet) == [Record(10, ("a", 1)), Record(10, ("b", 1))]


def test_pairs_are_at_most_so_many_positions_apart():
    assert library.pairs("abcd", 1) == [("a", "b"), ("b", "c"), ("c", "d")]
    assert len(library.pairs("abcd", None)) == 6
    assert len(library.pairs("abcde", 3)) == 9


@given(sorted_records, windows)
def test_several_keys_at_once_equal_a_map_of_copies_before_one_key_each(records, shape):
    # Corollary 1: A+ is a Map, one copy for each key, then A.
    copies = [Record(r.time, (key,)) for r in records for key in r.payload[0]]
    one_key = library.aggregate(*shape, lambda r: [r.payload[0]], lambda n, _: (n or 0) + 1, int)
    assert answers(run(counts(*shape), [*records, Watermark(1000)])) == answers(
        run(one_key, [*copies, Watermark(1000)])
    )


def test_a_record_without_keys_changes_nothing_but_the_watermark():
    state = WindowState()
    instance = Instance(counts(5, 10), state)
    assert instance.process(Record(3, ("",))) == []
    assert len(state) == 0
    assert instance.watermark == 3


def test_an_operator_keeps_a_window_for_each_of_three_inputs():
    sizes = OperatorPlus(
        10,
        10,
        lambda record: ["k"],
        WindowType.MULTI,
        ("a", "b", "c"),
        inputs=3,
        output=lambda windows: [tuple(len(w.state or ()) for w in windows)],
    )
    records = [Record(1, (1,), 0), Record(2, (1, 2), 2), Record(3, (1,), 0)]
    assert run(sizes, [*records, Watermark(10)]) == [Record(10, (2, 0, 1))]


def test_operator_6_forwards_every_record_once_per_key_and_keeps_nothing():
    state = WindowState()
    instance = Instance(library.forward(3), state)
    emitted = instance.process(Record(7, ("x",), 1))
    assert emitted == [Record(8, ("x",))] * 3
    instance.advance(8)
    assert len(state) == 0


def test_the_default_update_keeps_records_and_the_default_slide_drops_stale_ones():
    operator = library.single_aggregate(5, 10, lambda r: ["k"], len)
    state = WindowState()
    instance = Instance(operator, state)
    instance.process(Record(1, ("x",)))
    instance.process(Record(6, ("y",)))
    instance.advance(10)
    assert state.lefts("k") == [5]
    assert state.states("k", 5) == ((Record(6, ("y",)),),)
    instance.advance(100)
    assert len(state) == 0


def test_a_record_late_for_some_windows_counts_in_the_others():
    instance = Instance(counts(5, 10), WindowState())
    instance.advance(10)
    instance.update(Record(7, ("a",)))
    assert instance.advance(100) == [Record(15, ("a", 1))]


def test_single_windows_refuse_a_record_out_of_time_order():
    instance = Instance(library.single_aggregate(5, 10, letters, len), WindowState())
    instance.advance(10)
    with pytest.raises(ProtocolError, match="record at 7 came at watermark 10"):
        instance.update(Record(7, ("a",)))


@given(st.permutations(range(10)), windows)
def test_single_windows_take_disorder_through_the_time_order(order, shape):
    operator = library.single_aggregate(*shape, letters, len)
    waiting = TimeOrder()
    records = [Record(2 * i, ("a",)) for i in order]
    items = []
    for position, record in enumerate(records):
        waiting.receive(0, record)
        left = [r.time for r in records[position + 1 :]]
        if left:
            items += waiting.advance(Watermark(min(left)))
    items += waiting.advance(Watermark(1000))
    assert answers(run(operator, items)) == expected_counts(operator, records)


def test_the_operators_watermark_is_the_least_of_its_streams():
    tracker = ExplicitWatermark(2)
    assert tracker.receive(0, Watermark(10)).time < -(10**9)
    assert tracker.receive(1, Watermark(5)) == Watermark(5)
    assert tracker.receive(1, Watermark(3)) == Watermark(5)
    assert tracker.receive(1, Watermark(50)) == Watermark(10)


def test_records_are_ready_up_to_the_least_of_the_latest_times():
    assert ready_time([7, 3, 9]) == 3


def test_merged_streams_are_ordered_by_time_then_stream_then_position():
    streams = [[Record(1, ("a",)), Record(3, ("b",)), Record(3, ("c",))], [Record(3, ("d",))]]
    assert [r.payload[0] for r in merged(streams)] == ["a", "b", "c", "d"]


@given(sorted_records, windows, st.integers(1, 4))
def test_shared_nothing_instances_give_the_answer_of_one(records, shape, instances):
    # Theorem 1: without sharing a record with several keys is copied to several instances.
    operator = counts(*shape)
    epoch = Epoch(0, frozenset(range(instances)), lambda key: ord(str(key)) % instances)
    parts = [Instance(operator, WindowState(), j, epoch) for j in range(instances)]
    emitted = []
    for record in records:
        copies = route(operator, epoch, record)
        assert copies == {ord(key) % instances for key in record.payload[0]}
        for part in parts:
            emitted += part.advance(record.time)
            emitted += part.update(record) if part.number in copies else []
    for part in parts:
        emitted += part.advance(1000)
    assert answers(emitted) == answers(run(operator, [*records, Watermark(1000)]))


def test_two_writers_of_a_key_in_one_epoch_are_caught():
    state = WindowState()
    state.claim("k", 1, 0)
    state.claim("k", 2, 1)
    for epoch, instance in ((2, 0), (1, 0)):
        with pytest.raises(ProtocolError, match="one writer per epoch"):
            state.claim("k", epoch, instance)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"window_advance": 11}, "window_advance=11 does not fit window_size=10; use 1 to 10"),
        ({"window_advance": 0}, "window_advance=0"),
        ({"inputs": 0}, "inputs=0 is out of range"),
        ({"update": None}, "emits nothing; give one of them"),
    ],
)
def test_an_operator_that_cannot_be_is_refused(change, message):
    good = {
        "window_advance": 5,
        "window_size": 10,
        "keys": letters,
        "window_type": WindowType.MULTI,
        "schema": ("x",),
        "update": lambda windows, record: ([None], ()),
    }
    with pytest.raises(ConfigError, match=message):
        OperatorPlus(**(good | change))


def test_wrong_number_of_states_is_refused():
    operator = OperatorPlus(
        5, 10, letters, WindowType.MULTI, ("x",), update=lambda windows, record: ([], ())
    )
    with pytest.raises(ProtocolError, match="update returned 0 states"):
        run(operator, [Record(1, ("a",))])


def test_the_default_slide_refuses_a_state_it_cannot_read():
    operator = OperatorPlus(
        5, 10, letters, WindowType.SINGLE, ("x",), update=lambda windows, record: ([17], ())
    )
    with pytest.raises(ConfigError, match="give the operator a slide function"):
        run(operator, [Record(1, ("a",)), Watermark(100)])


def test_a_window_shows_its_span():
    seen: list[Window] = []
    spy = OperatorPlus(
        10, 20, lambda r: ["k"], WindowType.MULTI, ("x",),
        output=lambda windows: seen.extend(windows) or (),
    )  # fmt: skip
    run(spy, [Record(15, (1,)), Watermark(100)])
    assert [(w.left, w.right, w.key) for w in seen] == [(0, 20, "k"), (10, 30, "k")]
