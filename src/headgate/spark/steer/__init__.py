"""The control loop of a job on Spark: what it is told, and how its decisions are carried out.

Belongs here: samples made from the reports of committed batches, the loop's thread, commands of
people, decisions as journal events. Does not belong here: what a policy decides (headgate.control).
"""
