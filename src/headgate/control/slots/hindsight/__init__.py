"""Scores rules for the number of slots on the load that was measured, with virtual slots.

Belongs here: the rules, the virtual slots on which the rules are played, and the scores of the rules.
Does not belong here: the choice of the rule to follow and the change that it causes, which is a policy's
part (`headgate.control.slots.following`).
"""
