"""Defines the layout of a shared tuple buffer's file.

::

    0      header     8 words, then the shape as JSON
    4096   control 0  ┐ one of the two is in force; a change is made in the other one and takes effect
           control 1  ┘ by one store to the header: a process killed before that has changed nothing
           requests   the last few reconfigurations
           columns    int64 time[sources, slots], int64 tag[sources, slots], then the payload's

A source has a ring of `slots` records. Record n of source s (n starts at 0 and is never reset) is at
``[s, n % slots]`` of each column.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from headgate.core.errors import ConfigError, StateError
from headgate.tables.ports import I64, U8

MAGIC = 0x68675F7475706C65
VERSION = 1
HEADER_BYTES = 4096
_HEADER_WORDS = 8
# Positions in the header.
_MAGIC, _VERSION, ACTIVE, _JSON_BYTES = range(4)

SPARE_SLOTS = 16
"""Slots of a ring beyond its capacity, for dummy and flush records of sources that join and leave."""

REQUESTS = 8
"""Most reconfigurations that are kept at once: more than are ever under way. Chosen, not tuned."""

# A tag is (epoch << 32) | (rank << 2) | kind; the epoch is that of a control record.
KIND_MASK = 3
RANK_SHIFT = 2
RANK_MASK = (1 << 30) - 1
EPOCH_SHIFT = 32


@dataclass(frozen=True)
class BufferShape:
    """Holds the size of a shared tuple buffer; fixed when it is made.

    Parameters
    ----------
    columns : tuple of (str, str)    Names and NumPy types of a record's payload: fixed width, no objects.
    capacity : int                   Records per source by which the slowest reader may lag; >= 1.
    sources_max, readers_max : int   Sources are 0 to sources_max - 1, readers likewise.
    key_groups : int                 Entries of a reconfiguration's mapping.

    Raises
    ------
    ConfigError    A number is out of range, a column has no fixed-width type or is named twice.
    """

    columns: tuple[tuple[str, str], ...]
    capacity: int = 65_536
    sources_max: int = 16
    readers_max: int = 16
    key_groups: int = 128

    def __post_init__(self) -> None:
        for name in ("capacity", "sources_max", "readers_max", "key_groups"):
            if getattr(self, name) < 1:
                msg = f"{name}={getattr(self, name)} of a tuple buffer is out of range; use 1 or more."
                raise ConfigError(msg)
        for name, kind in self.columns:
            if np.dtype(kind).hasobject or np.dtype(kind).itemsize == 0:
                msg = f"column {name} is {kind}; a tuple buffer holds fixed-width values only."
                raise ConfigError(msg)
        if len(dict(self.columns)) < len(self.columns):
            msg = f"columns {[name for name, _ in self.columns]} are not distinct; rename one."
            raise ConfigError(msg)

    @property
    def slots(self) -> int:
        """Records that the ring of one source holds."""
        return self.capacity + SPARE_SLOTS

    @property
    def control(self) -> np.dtype[np.void]:
        """The type of the control structure: the connected sources and readers, and their positions."""
        sources, readers = self.sources_max, self.readers_max
        return np.dtype(
            [
                ("next_rank", "i8"),
                ("next_generation", "i8"),
                ("request_count", "i8"),
                ("rank", "i8", (sources,)),
                ("head", "i8", (sources,)),
                ("announced", "i8", (sources,)),
                ("generation", "i8", (readers,)),
                ("seen", "i8", (readers,)),
                ("cursor", "i8", (readers, sources)),
            ]
        )

    @property
    def request(self) -> np.dtype[np.void]:
        """The type of one reconfiguration."""
        return np.dtype(
            [
                ("number", "i8"),
                ("instances", "u1", (self.readers_max,)),
                ("slot_of", "i4", (self.key_groups,)),
            ]
        )

    @property
    def byte_count(self) -> int:
        """Size of the whole file in bytes."""
        ends = self.offsets()
        return ends[-1]

    def offsets(self) -> list[int]:
        """Return where each part begins, each on a cache line of its own, and the end."""
        ring = self.sources_max * self.slots
        sizes = [self.control.itemsize, self.control.itemsize, REQUESTS * self.request.itemsize]
        sizes += [8 * ring, 8 * ring, *(np.dtype(kind).itemsize * ring for _, kind in self.columns)]
        offsets = [HEADER_BYTES]
        for size in sizes:
            offsets.append(offsets[-1] + -(-size // 64) * 64)
        return offsets


@dataclass(frozen=True)
class Control:
    """Holds one copy of the control structure, as views.

    Attributes
    ----------
    counters : void           ``next_rank``, ``next_generation``, ``request_count``.
    rank : int64[sources]     Of connected sources; -1 for the others.
    head : int64[sources]     Records a source has ever added, of any kind.
    announced : int64[sources]    The last reconfiguration in a source's stream.
    generation : int64[readers]   Of connected readers, never used twice; 0 for the others.
    seen : int64[readers]     The last reconfiguration a reader has got.
    cursor : int64[readers, sources]    Records of each source a reader has got or passed.
    raw : uint8[...]          All of it.
    """

    counters: npt.NDArray[np.void]
    rank: I64
    head: I64
    announced: I64
    generation: I64
    seen: I64
    cursor: I64
    raw: U8


class BufferViews:
    """Holds the parts of a mapped file, as arrays.

    Parameters
    ----------
    mapped : uint8[bytes]
    """

    def __init__(self, mapped: U8, shape: BufferShape) -> None:
        self.shape = shape
        self.header: I64 = mapped[: 8 * _HEADER_WORDS].view(np.int64)
        offsets = shape.offsets()

        def part(number: int, dtype: npt.DTypeLike, count: int) -> npt.NDArray[Any]:
            size = np.dtype(dtype).itemsize * count
            return mapped[offsets[number] : offsets[number] + size].view(dtype)

        ring = shape.sources_max * shape.slots
        square = (shape.sources_max, shape.slots)
        self.controls = [_control(part(n, np.uint8, shape.control.itemsize), shape) for n in (0, 1)]
        self.requests = part(2, shape.request, REQUESTS)
        self.times: I64 = part(3, np.int64, ring).reshape(square)
        self.tags: I64 = part(4, np.int64, ring).reshape(square)
        self.columns = {
            name: part(5 + n, kind, ring).reshape(square)
            for n, (name, kind) in enumerate(shape.columns)
        }

    def write_header(self, mapped: U8) -> None:
        """Write the shape, so that the file can be opened by its path alone."""
        text = np.frombuffer(json.dumps(asdict(self.shape)).encode(), dtype=np.uint8)
        if 8 * _HEADER_WORDS + text.size > HEADER_BYTES:
            msg = (
                f"{len(self.shape.columns)} columns do not fit a tuple buffer's header; use fewer."
            )
            raise ConfigError(msg)
        mapped[8 * _HEADER_WORDS :][: text.size] = text
        self.header[[_MAGIC, _VERSION, ACTIVE, _JSON_BYTES]] = MAGIC, VERSION, 0, text.size


def read_shape(raw: bytes, path: str) -> BufferShape:
    """Return the shape that a file's first bytes describe.

    Raises
    ------
    StateError    The file is not a tuple buffer or has another version.
    """
    words = np.frombuffer(raw[: 8 * _HEADER_WORDS].ljust(8 * _HEADER_WORDS, b"\0"), dtype=np.int64)
    if int(words[_MAGIC]) != MAGIC or int(words[_VERSION]) != VERSION:
        msg = f"{path} is no tuple buffer of version {VERSION}; make one with create."
        raise StateError(msg)
    start = 8 * _HEADER_WORDS
    fields = json.loads(raw[start : start + int(words[_JSON_BYTES])])
    fields["columns"] = tuple((name, kind) for name, kind in fields["columns"])
    return BufferShape(**fields)


def _control(raw: U8, shape: BufferShape) -> Control:
    whole = raw.view(shape.control)
    views = {n: whole[n][0] for n in ("rank", "head", "announced", "generation", "seen", "cursor")}
    return Control(counters=whole, raw=raw, **views)
