"""Moves key groups to another slot or another host on Spark, while batches go on.

Belongs here: carrying out the instructions of `headgate.migration` (migrations,
migration_executor), tasks on hosts (host_tasks), the thread that runs them (copy_thread), the host
of each slot (placement). Does not belong here: the order in which groups move (headgate.migration),
the reason why they move (steer).
"""
