"""What would have kept the bound: rules for the number of slots, played on the load that was measured.

Belongs here: the rules, the virtual slots they are played on, and how they did. Does not belong here:
which one to follow, and what to do about it, which is a policy's.
"""
