"""The windows of one key, as slots serve them, against the reference, which serves all keys at once."""

from __future__ import annotations

from collections import defaultdict

from hypothesis import example, given
from hypothesis import strategies as st

from headgate.operators.key_windows import KeyWindows
from headgate.operators.operator_plus import OperatorPlus, Record, WindowType
from headgate_lab.oplus.reference import Instance, WindowState


def described(record):
    return f"{record.input}:{record.time}:{record.payload[0]}"


def concatenated(windows, record):
    """f_U that depends on the order of records, and emits."""
    text = f"{windows[record.input].state or ''}|{described(record)}"
    states = [window.state for window in windows]
    states[record.input] = text
    return states, [(windows[0].key, text)]


def texts(windows):
    return [(windows[0].key, str([window.state for window in windows]))]


def kept(windows):
    return [(windows[0].key, [described(r) for w in windows for r in w.state or ()])]


def newest(windows):
    return [tuple(r for r in (w.state or ())[-1:] if r.time >= w.left) or None for w in windows]


def unchanged(windows):
    return [window.state for window in windows]


GIVEN = [
    {"update": concatenated},
    {"update": concatenated, "output": texts},
    {"output": kept},
    {"output": kept, "window_type": WindowType.SINGLE},
    {"output": kept, "slide": newest, "window_type": WindowType.SINGLE},
    {"slide": newest, "window_type": WindowType.SINGLE},
    {"update": concatenated, "slide": unchanged, "window_type": WindowType.SINGLE},
]


@st.composite
def operators(draw):
    size = draw(st.integers(1, 6))
    advance = draw(st.integers(1, size))
    given_ = draw(st.sampled_from(GIVEN))
    return OperatorPlus(
        advance, size, lambda record: record.payload[0], inputs=2, distinct=True, **given_
    )


records = st.lists(
    # so close that a window often ends where a record stands
    st.tuples(st.integers(-4, 9), st.sampled_from(["a", "a", "ab", ""]), st.integers(0, 1)),
    min_size=2,
    max_size=12,
).map(lambda rows: [Record(t, (w,), i) for t, w, i in sorted(rows)])


class Slot:
    """Keeps the windows of all keys between calls, as a processor's state does."""

    def __init__(self, operator):
        self.operator = operator
        self.states = defaultdict(dict)

    def call(self, key, serve):
        windows = KeyWindows(self.operator, key, self.states[key])
        emitted = serve(windows)
        for left in windows.removed:
            del self.states[key][left]
        for left in windows.changed:
            self.states[key][left] = tuple(windows.states(left))
        assert windows.due == min(
            (left + self.operator.window_size for left in self.states[key]), default=None
        )
        return emitted


def sorted_(emitted):
    return sorted(emitted, key=repr)


ONCE = OperatorPlus(
    1, 3, lambda r: "a", WindowType.SINGLE, inputs=2, update=concatenated, slide=unchanged
)


@given(operators(), records)
@example(ONCE, [Record(0, ("a",), 0), Record(1, ("a",), 1)])
def test_key_by_key_emits_what_the_reference_does(operator, given_records):
    instance, slot = Instance(operator, WindowState()), Slot(operator)
    expected, got = [], []
    for record in given_records:
        expected += instance.process(record)
        for key in operator.keys_of(record):
            got += slot.call(key, lambda windows, record=record: windows.take(record))
    expected += instance.advance(100)
    for key in list(slot.states):
        got += slot.call(key, lambda windows: windows.advance(100))
    assert sorted_(got) == sorted_(expected)
    assert all(slot.states[key] == {} for key in slot.states) or operator.output is None


@given(st.permutations(range(10)), st.integers(1, 8), st.data())
def test_records_out_of_order_update_the_windows_that_live(order, size, data):
    operator = OperatorPlus(
        data.draw(st.integers(1, size)), size, lambda r: "a", inputs=2, output=kept
    )
    instance, slot = Instance(operator, WindowState()), Slot(operator)
    expected, got, watermark = [], [], -1
    for place, number in enumerate(order):
        record = Record(2 * number, (str(number),), number % 2)
        expected += instance.update(record)
        first, last = operator.earliest_left(record.time), operator.latest_left(record.time)
        for left in range(first, last + 1, operator.window_advance):
            if left + size > watermark:  # the others the engine has dropped: they are late
                got += slot.call("a", lambda w, left=left, record=record: w.update(left, record))
        watermark = max(watermark, data.draw(st.integers(-1, place)))
        expected += instance.advance(watermark)
        got += slot.call("a", lambda w, until=watermark: w.advance(until))
    assert got == expected
