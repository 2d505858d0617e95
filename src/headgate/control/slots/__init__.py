"""Decides about one query's slots: the number of slots, and the slot of each key group.

Belongs here: the policies of a query, one file each (static, threshold, streamswitch, unified), and the
functions that several of them share (following, projection, rescaling, repacking, splitting, strategies;
hindsight scores rules on past load). Does not belong here: the input and output of a policy, which all
kinds of policies share (control), the budget of many queries (fleet).
"""
