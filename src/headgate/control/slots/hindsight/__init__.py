"""Scores rules for the number of slots: plays the measured load on virtual slots under each rule.

Belongs here: the rules, the virtual slots, and the scores of the rules. Does not belong here: the choice
of the rule to follow and the change that this rule wants (`headgate.control.slots.following`).
"""
