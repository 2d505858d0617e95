"""What was read last is kept, within a number of bytes."""

from __future__ import annotations

from headgate.checkpoint.recent import Recent


def test_what_was_read_longest_ago_goes_first() -> None:
    kept: Recent[str] = Recent(30)
    for key in "abc":
        kept.put(key, key.upper(), 10)
    assert kept.get("a") == "A"  # read again, so b is the oldest
    kept.put("d", "D", 10)
    assert [kept.get(key) for key in "abcd"] == ["A", None, "C", "D"]
    assert (len(kept), kept.byte_count) == (3, 30)


def test_a_value_that_is_put_again_counts_once_and_as_new() -> None:
    kept: Recent[str] = Recent(30)
    for key in "abc":
        kept.put(key, key, 10)
    kept.put("a", "new", 5)
    assert (kept.get("a"), kept.byte_count) == ("new", 25)
    kept.put("d", "d", 10)
    assert [kept.get(key) for key in "abcd"] == ["new", None, "c", "d"]


def test_one_value_is_kept_however_large_and_nothing_beside_it() -> None:
    kept: Recent[str] = Recent(30)
    kept.put("a", "a", 30)
    kept.put("large", "l", 100)
    assert (kept.get("a"), kept.get("large"), kept.byte_count) == (None, "l", 100)
    kept.put("b", "b", 1)
    assert (kept.get("large"), kept.get("b"), kept.byte_count) == (None, "b", 1)
    kept.clear()
    assert (len(kept), kept.byte_count, kept.get("b")) == (0, 0, None)
