"""Migration on Spark: key groups that change their slot or their host while batches go on.

Belongs here: carrying out what the protocol of `headgate.migration` asks for: host tasks on hosts, the
thread that runs them, which host a slot is on. Does not belong here: in which order groups move
(headgate.migration), why they move (steer).
"""
