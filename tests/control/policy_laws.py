"""Laws that every policy over slots keeps: a contract suite, told a policy by its text."""

from __future__ import annotations

from control_views import absurd_views, check, seen
from hypothesis import given
from hypothesis import strategies as st

from headgate.control.registry import policy


class PolicyLaws:
    """Contract of a policy; a test class derives from it and parametrises `text`.

    Give a policy with an interval an interval of one cycle, or else it never decides within a test.
    """

    @given(views=st.lists(absurd_views(), min_size=1, max_size=6), told=st.booleans())
    def test_a_policy_returns_what_an_engine_can_do_whatever_it_sees_and_the_same_each_time(
        self, text: str, views: list, told: bool
    ) -> None:
        made, again = policy(text), policy(text)
        for time_s, one in enumerate(views):
            observation = seen(float(time_s), op=one)
            decision = made.decide(observation)
            check(observation, decision)
            assert again.decide(observation) == decision
            for one_of_both in (made, again):
                if told and decision:
                    one_of_both.applied("op", decision.changes["op"], 0.3)
                if told:
                    one_of_both.slot_failed("op", one.slot_ids[0])

    @given(pairs=st.lists(st.tuples(absurd_views(), absurd_views()), min_size=1, max_size=4))
    def test_a_policy_copes_with_several_operators_of_which_some_cannot_be_seen(
        self, text: str, pairs: list
    ) -> None:
        made = policy(text)
        for cycle, (first, second) in enumerate(pairs):
            seen_now = {"a": first} if cycle % 2 else {"a": first, "b": second}
            observation = seen(float(cycle), {"b": ("a",)}, **seen_now)
            check(observation, made.decide(observation))
