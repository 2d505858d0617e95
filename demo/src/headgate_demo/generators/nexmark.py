"""Generates the NEXMark stream: people, the auctions that they open, and bids.

Every row is a pure function of (configuration, event number): random numbers are hashes of (seed,
event number, field) instead of a stream. So any process can generate any range of events, also again
after a crash, and gets the same rows. Ids follow the Flink and Beam generators exactly; columns that only
fill space (names, texts, urls) have their sizes, not their words.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headgate.core.errors import ConfigError, nearest
from headgate.workloads.rates import ConstantRate, RateFunction
from headgate_demo.generators.draws import I64, U64, Draw, below, unit, zipf_edges

__all__ = ["COLUMNS", "NexmarkConfig", "check_columns", "due", "events", "schema"]

FIRST_ID = 1000
"""The first person and auction; ids below never occur. Flink nexmark, GeneratorConfig."""

FIRST_CATEGORY, CATEGORIES = 10, 5
"""Categories 10 to 14. Flink nexmark, AuctionGenerator."""

HOT_STEP = 100
"""A hot auction, seller or bidder stays hot until this many more exist. Flink nexmark."""

ID_LEAD = 10
"""Bids may name an auction or person up to this many ids ahead. Flink nexmark."""

DELAY_MS_MAX = 2_000_000
"""Longest delay whose microseconds fit into a random number of 31 bits."""

_RATE = ConstantRate(10_000.0)
_TIMESTAMP = pa.timestamp("us", tz="UTC")


@dataclass(frozen=True)
class NexmarkConfig:
    """Holds the parameters of the generator: the mix, the content and the rate of events."""

    seed: int = 0
    """Chooses all random numbers; any integer of 64 bits."""

    rate: RateFunction = _RATE
    """Events of all three kinds per second. Default: Flink nexmark."""

    person_proportion: int = 1
    """New people per epoch of events; >= 1. The defaults are Flink nexmark's, with epochs of 50."""

    auction_proportion: int = 3
    """New auctions per epoch; >= 1."""

    bid_proportion: int = 46
    """Bids per epoch; >= 0."""

    hot_auction_ratio: int = 2
    """A bid is on the hot auction with probability 1 - 1/ratio; >= 1, 1 means never."""

    hot_seller_ratio: int = 4
    """An auction is by the hot seller with probability 1 - 1/ratio; >= 1, 1 means never."""

    hot_bidder_ratio: int = 4
    """A bid is by the hot bidder with probability 1 - 1/ratio; >= 1, 1 means never."""

    in_flight_auctions: int = 100
    """Auctions open at a time; a bid that is not on the hot auction chooses evenly among them; >= 1."""

    active_people: int = 1000
    """Number of latest people; a bid or auction not by the hot person chooses evenly among them; >= 1."""

    skew: float = 0.0
    """Zipf exponent s of bids over the auctions in flight: rank k gets a share in proportion to
    1/(k + 1)^s, rank 0 is the hot auction. 0 keeps NEXMark's own choice; above 0 it replaces that
    choice and `hot_auction_ratio`. Not part of NEXMark; DRRS uses 0.5 to 1.5 elsewhere."""

    prob_delayed: float = 0.1
    """Share of events whose event time is before their due time; 0 to 1."""

    delay_ms: int = 3000
    """Largest difference between due time and event time of a delayed event, in ms; drawn evenly from
    1 us on; 0 to `DELAY_MS_MAX`. With a longer watermark delay no event is late."""

    padding: bool = False
    """Fill `extra` so that people, auctions and bids have 200, 500 and 100 bytes on average."""

    max_events: int | None = None
    """The stream ends after this many events; None means never."""

    def __post_init__(self) -> None:
        at_least = {
            "person_proportion": 1, "auction_proportion": 1, "bid_proportion": 0,
            "hot_auction_ratio": 1, "hot_seller_ratio": 1, "hot_bidder_ratio": 1,
            "in_flight_auctions": 1, "active_people": 1, "skew": 0, "delay_ms": 0,
        }  # fmt: skip
        for name, least in at_least.items():
            if not getattr(self, name) >= least:
                msg = f"{name} of nexmark is {getattr(self, name)}; give {least} or more."
                raise ConfigError(msg)
        if not 0.0 <= self.prob_delayed <= 1.0:
            msg = f"prob_delayed of nexmark is {self.prob_delayed}; give a share from 0 to 1."
            raise ConfigError(msg)
        if self.delay_ms > DELAY_MS_MAX:
            msg = f"delay_ms of nexmark is {self.delay_ms}; give {DELAY_MS_MAX} at most."
            raise ConfigError(msg)
        if self.max_events is not None and self.max_events < 0:
            msg = f"max_events of nexmark is {self.max_events}; give 0 or more, or leave it out."
            raise ConfigError(msg)

    @property
    def epoch_events(self) -> int:
        """The number of events after which the mix of kinds repeats."""
        return self.person_proportion + self.auction_proportion + self.bid_proportion


def due(config: NexmarkConfig, elapsed_s: float) -> int:
    """Return how many events are due `elapsed_s` seconds after the start, at most `max_events`."""
    count = int(config.rate.count(elapsed_s))
    return count if config.max_events is None else min(count, config.max_events)


# --- random numbers ------------------------------------------------------------------------------

_FIELDS = (
    "delay", "bid.auction", "bid.bidder", "bid.price", "bid.channel", "bid.extra",
    "auction.seller", "auction.category", "auction.initialBid", "auction.reserve",
    "auction.expires", "auction.itemName", "auction.description", "auction.extra",
    "person.name", "person.emailAddress", "person.creditCard", "person.city", "person.extra",
)  # fmt: skip
"""Fields with random values. Their order is part of the format: a new field goes to the end."""


def _often(bits: U64, ratio: int) -> npt.NDArray[np.bool_]:
    """Return True with probability 1 - 1/ratio per event, from the lower 32 of `bits`."""
    low = (bits & np.uint64(0xFFFFFFFF)).view(np.int64)
    return ((low * ratio) >> 32) > 0


# --- ids and times -------------------------------------------------------------------------------


class _Slice:
    """Holds the columns of some events from which other columns are computed.

    Attributes
    ----------
    event : int64[n]           Event numbers.
    kind : int32[n]            0 person, 1 auction, 2 bid.
    last_person, last_auction : int64[n]   Newest id so far, from 0 (not `FIRST_ID`).
    scheduled_us, event_us : int64[n]      Due time and event time, us since the Unix epoch.
    """

    def __init__(self, config: NexmarkConfig, event: I64, base_us: int) -> None:
        self.config, self.event, self.base_us = config, event, base_us
        people, auctions = config.person_proportion, config.auction_proportion
        epoch = event // config.epoch_events
        offset = event - epoch * config.epoch_events
        self.kind = (offset >= people).astype(np.int32) + (offset >= people + auctions)
        self.last_person = epoch * people + np.minimum(offset, people - 1)
        newest = np.clip(offset - people, -1, auctions - 1)
        self.last_auction = epoch * auctions + newest
        self.draw = Draw.of(config.seed, event, _FIELDS)
        self.scheduled_us = base_us + _due_us(config, event)
        self.event_us = self.scheduled_us - self._delay_us()

    def _delay_us(self) -> I64:
        config = self.config
        if not (config.delay_ms and config.prob_delayed):
            return np.zeros_like(self.event)
        bits = self.draw.bits("delay")
        share = (bits & np.uint64(0xFFFFFFFF)).view(np.int64)
        delayed = share < int(config.prob_delayed * (1 << 32))
        return np.where(delayed, 1 + below(bits, config.delay_ms * 1000), 0)

    def only(self, kind: int) -> _Slice:
        """Return the events of one kind."""
        return _Slice(self.config, self.event[self.kind == kind], self.base_us)

    def someone(self, bits: U64) -> I64:
        """Return a person chosen evenly among the active people and `ID_LEAD` that do not exist yet."""
        people = self.last_person + 1
        active = np.minimum(people, self.config.active_people)
        person: I64 = people - active + below(bits, active + ID_LEAD)
        return person


def _due_us(config: NexmarkConfig, event: I64) -> I64:
    """Return when events are due, whole microseconds after the start."""
    return np.floor(config.rate.time_of(event) * 1e6).astype(np.int64)


def _price(draw: Draw, field: str) -> I64:
    """Return round(10^(6u) * 100) with u even in [0, 1)."""
    cents = np.exp(draw.unit(field) * (6.0 * np.log(10.0)))
    auction: I64 = np.rint(cents * 100.0).astype(np.int64)
    return auction


def _bid_auction(s: _Slice) -> I64:
    config, bits = s.config, s.draw.bits("bid.auction")
    if config.skew > 0.0:
        shares = zipf_edges(config.in_flight_auctions, config.skew)
        rank = np.minimum(np.searchsorted(shares, unit(bits), side="right"), len(shares) - 1)
        bidder: I64 = FIRST_ID + np.maximum(s.last_auction // HOT_STEP * HOT_STEP - rank, 0)
        return bidder
    oldest = np.maximum(s.last_auction - config.in_flight_auctions, 0)
    chosen = oldest + below(bits, s.last_auction - oldest + 1 + ID_LEAD)
    if config.hot_auction_ratio > 1:
        hot = _often(bits, config.hot_auction_ratio)
        chosen = np.where(hot, s.last_auction // HOT_STEP * HOT_STEP, chosen)
    seller: I64 = FIRST_ID + chosen
    return seller


def _bid_bidder(s: _Slice) -> I64:
    bits = s.draw.bits("bid.bidder")
    chosen = s.someone(bits)
    if s.config.hot_bidder_ratio > 1:
        hot = _often(bits, s.config.hot_bidder_ratio)
        chosen = np.where(hot, s.last_person // HOT_STEP * HOT_STEP + 1, chosen)
    return FIRST_ID + chosen


def _auction_seller(s: _Slice) -> I64:
    bits = s.draw.bits("auction.seller")
    chosen = s.someone(bits)
    if s.config.hot_seller_ratio > 1:
        hot = _often(bits, s.config.hot_seller_ratio)
        chosen = np.where(hot, s.last_person // HOT_STEP * HOT_STEP, chosen)
    return FIRST_ID + chosen


def _auction_expires_us(s: _Slice) -> I64:
    """Return t + 1 ms + U[0, 2 horizon).

    The horizon is the time in which as many auctions follow as are in flight.
    """
    config = s.config
    ahead = config.in_flight_auctions * config.epoch_events // config.auction_proportion
    horizon_us = _due_us(config, s.event + ahead) - (s.scheduled_us - s.base_us)
    length_ms = 1 + s.draw.below("auction.expires", np.maximum(2 * (horizon_us // 1000), 1))
    return s.event_us + length_ms * 1000


# --- texts ---------------------------------------------------------------------------------------

_FIRST_NAMES = "Peter Paul Luke John Saul Vicky Kate Julie Sarah Deiter Walter".split()
_LAST_NAMES = "Shultz Abrams Spencer White Bartels Walton Smith Jones Noris".split()
_CITIES = (
    ("Phoenix", "AZ"), ("Los Angeles", "CA"), ("San Francisco", "CA"), ("Boise", "ID"),
    ("Portland", "OR"), ("Bend", "OR"), ("Redmond", "WA"), ("Seattle", "WA"), ("Kent", "WA"),
    ("Cheyenne", "WY"),
)  # fmt: skip
_HOT_CHANNELS = ("Google", "Facebook", "Baidu", "Apple")
_CHANNELS = 10_000
"""Channels that are not hot; the hot ones get half of the bids. Flink nexmark, BidGenerator."""

_PADDINGS = 1024
_PADDED_BYTES = {"person": 200 - 66, "auction": 500 - 168, "bid": 100 - 32}
"""Average bytes of `extra`: Flink nexmark's average size of a row minus the size of the other fields."""


@lru_cache(maxsize=1)
def _channels() -> tuple[pa.Array, pa.Array]:
    """Return the names and urls of all channels, the hot ones first."""
    names = [*_HOT_CHANNELS, *(f"channel-{number}" for number in range(_CHANNELS))]
    letters = Draw.of(0, np.arange(len(names)), _FIELDS).letters("bid.channel", 15)
    words = [row.tobytes().decode() for row in letters]
    urls = [
        f"https://www.nexmark.com/{word[:5]}/{word[5:10]}/{word[10:]}/item.htm?query=1"
        + ("" if number < len(_HOT_CHANNELS) else f"&channel_id={number}")
        for number, word in enumerate(words)
    ]
    return pa.array(names), pa.array(urls)


def _channel(s: _Slice) -> I64:
    bits = s.draw.bits("bid.channel")
    hot = below(bits, len(_HOT_CHANNELS))
    return np.where(_often(bits, 2), hot, len(_HOT_CHANNELS) + below(bits, _CHANNELS))


@lru_cache(maxsize=3)
def _paddings(kind: str) -> pa.Array:
    """Return texts for `extra` of `kind`, within 20 % of the average length."""
    mean = _PADDED_BYTES[kind]
    letters = Draw.of(1, np.arange(_PADDINGS), _FIELDS).letters(f"{kind}.extra", mean + mean // 5)
    lengths = mean - mean // 5 + np.arange(_PADDINGS) % (2 * (mean // 5))
    return pa.array([row.tobytes().decode()[:n] for row, n in zip(letters, lengths, strict=True)])


def _extra(s: _Slice, kind: str) -> pa.Array:
    if not s.config.padding:
        return pa.repeat(pa.scalar(""), len(s.event))
    return _paddings(kind).take(pa.array(s.draw.below(f"{kind}.extra", _PADDINGS)))


def _fixed_width(letters: npt.NDArray[np.uint8]) -> pa.Array:
    """Return one string per row of `letters`, uint8[n, width]."""
    rows, width = letters.shape
    offsets = np.arange(rows + 1, dtype=np.int32) * np.int32(width)
    data = pa.py_buffer(np.ascontiguousarray(letters))
    return pa.StringArray.from_buffers(rows, pa.py_buffer(offsets), data)


def _email(s: _Slice) -> pa.Array:
    letters = s.draw.letters("person.emailAddress", 17)
    letters[:, 7] = ord("@")
    letters[:, 13:] = np.frombuffer(b".com", dtype=np.uint8)
    return _fixed_width(letters)


def _credit_card(s: _Slice) -> pa.Array:
    letters = s.draw.letters("person.creditCard", 19)
    digits = np.uint8(ord("0")) + letters % np.uint8(10)
    digits[:, 4::5] = ord(" ")
    return _fixed_width(digits)


def _person_name(s: _Slice) -> pa.Array:
    names = pa.array([f"{first} {last}" for first in _FIRST_NAMES for last in _LAST_NAMES])
    return names.take(pa.array(s.draw.below("person.name", len(names))))


def _place(s: _Slice, part: int) -> pa.Array:
    places = pa.array([city[part] for city in _CITIES])
    return places.take(pa.array(s.draw.below("person.city", len(places))))


# --- columns -------------------------------------------------------------------------------------

_Column = tuple[pa.DataType, Callable[[_Slice], object]]


def _timestamps(times_us: I64) -> pa.Array:
    return pa.array(times_us).cast(pa.timestamp("us")).cast(_TIMESTAMP)


_STRUCTS: dict[str, dict[str, _Column]] = {
    "person": {
        "id": (pa.int64(), lambda s: FIRST_ID + s.last_person),
        "name": (pa.string(), _person_name),
        "emailAddress": (pa.string(), _email),
        "creditCard": (pa.string(), _credit_card),
        "city": (pa.string(), lambda s: _place(s, 0)),
        "state": (pa.string(), lambda s: _place(s, 1)),
        "dateTime": (_TIMESTAMP, lambda s: _timestamps(s.event_us)),
        "extra": (pa.string(), lambda s: _extra(s, "person")),
    },
    "auction": {
        "id": (pa.int64(), lambda s: FIRST_ID + s.last_auction),
        "itemName": (pa.string(), lambda s: _fixed_width(s.draw.letters("auction.itemName", 20))),
        "description": (
            pa.string(),
            lambda s: _fixed_width(s.draw.letters("auction.description", 100)),
        ),
        "initialBid": (pa.int64(), lambda s: _price(s.draw, "auction.initialBid")),
        "reserve": (
            pa.int64(),
            lambda s: _price(s.draw, "auction.initialBid") + _price(s.draw, "auction.reserve"),
        ),
        "dateTime": (_TIMESTAMP, lambda s: _timestamps(s.event_us)),
        "expires": (_TIMESTAMP, lambda s: _timestamps(_auction_expires_us(s))),
        "seller": (pa.int64(), _auction_seller),
        "category": (
            pa.int64(),
            lambda s: FIRST_CATEGORY + s.draw.below("auction.category", CATEGORIES),
        ),
        "extra": (pa.string(), lambda s: _extra(s, "auction")),
    },
    "bid": {
        "auction": (pa.int64(), _bid_auction),
        "bidder": (pa.int64(), _bid_bidder),
        "price": (pa.int64(), lambda s: _price(s.draw, "bid.price")),
        "channel": (pa.string(), lambda s: _channels()[0].take(pa.array(_channel(s)))),
        "url": (pa.string(), lambda s: _channels()[1].take(pa.array(_channel(s)))),
        "dateTime": (_TIMESTAMP, lambda s: _timestamps(s.event_us)),
        "extra": (pa.string(), lambda s: _extra(s, "bid")),
    },
}

_PLAIN: dict[str, _Column] = {
    "event_type": (pa.int32(), lambda s: s.kind),
    "dateTime": (_TIMESTAMP, lambda s: _timestamps(s.event_us)),
    "scheduled": (_TIMESTAMP, lambda s: _timestamps(s.scheduled_us)),
}

_KINDS = ("person", "auction", "bid")

COLUMNS: tuple[str, ...] = ("event_type", "person", "auction", "bid", "dateTime", "scheduled")
"""The columns of a full row, in order."""


def check_columns(columns: Iterable[str] | None) -> tuple[tuple[str, tuple[str, ...]], ...]:
    """Return the chosen columns with the fields of each, in the order of a full row.

    Parameters
    ----------
    columns : iterable of str, or None
        Columns (``bid``) or fields of one (``bid.price``); None means all.

    Returns
    -------
    tuple of (column, fields)
        The fields are empty for a column that is no struct.

    Raises
    ------
    ConfigError
        A name is unknown, or `columns` is empty.
    """
    paths = {f"{struct}.{field}" for struct, fields in _STRUCTS.items() for field in fields}
    chosen = set(COLUMNS if columns is None else columns)
    for name in sorted(chosen - paths - set(COLUMNS)):
        hint = nearest(name, [*COLUMNS, *sorted(paths)]) or f"; choose among {', '.join(COLUMNS)}."
        msg = f'nexmark has no column "{name}"{hint}'
        raise ConfigError(msg)
    if not chosen:
        msg = f"columns of nexmark is empty; choose among {', '.join(COLUMNS)}."
        raise ConfigError(msg)
    result = []
    for name in COLUMNS:
        fields = _STRUCTS.get(name, {})
        if name in chosen:
            result.append((name, tuple(fields)))
        elif some := tuple(f for f in fields if f"{name}.{f}" in chosen):
            result.append((name, some))
    return tuple(result)


def schema(columns: Iterable[str] | None = None) -> pa.Schema:
    """Return the Arrow schema of `events` with these `columns`."""
    return _schema(check_columns(columns))


def _schema(chosen: tuple[tuple[str, tuple[str, ...]], ...]) -> pa.Schema:
    fields = []
    for name, inner in chosen:
        if name in _PLAIN:
            fields.append(pa.field(name, _PLAIN[name][0]))
        else:
            struct = pa.struct([pa.field(f, _STRUCTS[name][f][0]) for f in inner])
            fields.append(pa.field(name, struct))
    return pa.schema(fields)


def events(
    config: NexmarkConfig,
    start: int,
    stop: int,
    base_us: int,
    columns: Iterable[str] | None = None,
) -> pa.RecordBatch:
    """Return the rows of events [start, stop).

    A pure function: a row depends only on the configuration, its event number and the base. Ignores
    `max_events`; the caller knows the end from `due`.

    Parameters
    ----------
    start, stop : int
        Event numbers from 0; ``0 <= start <= stop``. All rows are in memory at once: keep ranges below
        a million; about 30,000 is fastest.
    base_us : int
        When the stream started, us since the Unix epoch.
    columns : iterable of str, optional
        See `check_columns`; omitted columns cost no time.

    Returns
    -------
    RecordBatch
        ``stop - start`` rows in event order: event_type (0 person, 1 auction, 2 bid); person,
        auction, bid (null in rows of another type); dateTime (event time); scheduled (due time).
    """
    assert 0 <= start <= stop, (start, stop)
    chosen = check_columns(columns)
    rows = _Slice(config, np.arange(start, stop, dtype=np.int64), base_us)
    arrays = [
        pa.array(_PLAIN[name][1](rows)) if name in _PLAIN else _struct(name, fields, rows)
        for name, fields in chosen
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=_schema(chosen))


def _struct(name: str, fields: tuple[str, ...], rows: _Slice) -> pa.Array:
    """Return a struct column, null where an event is of another kind."""
    kind = _KINDS.index(name)
    here = rows.kind == kind
    if name == "bid":
        # Nearly all events are bids: computing the column for all is cheaper than selecting.
        return _struct_of(name, fields, rows, mask=pa.array(~here))
    index = np.cumsum(here) - 1
    few = _struct_of(name, fields, rows.only(kind), mask=None)
    return few.take(pa.array(index, mask=~here))


def _struct_of(name: str, fields: tuple[str, ...], rows: _Slice, mask: pa.Array | None) -> pa.Array:
    types = [pa.field(field, _STRUCTS[name][field][0]) for field in fields]
    arrays = [pa.array(_STRUCTS[name][field][1](rows)) for field in fields]
    return pa.StructArray.from_arrays(arrays, fields=types, mask=mask)
