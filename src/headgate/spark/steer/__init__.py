"""Runs the control loop of a job on Spark: feeds it with samples, and carries its decisions out.

Belongs here: samples made from the reports of committed batches (metrics), the loop's thread
(controller), decisions carried out (actuator) and written to the journal (decisions), commands of
people (commands). Does not belong here: the decision of a policy (headgate.control).
"""
