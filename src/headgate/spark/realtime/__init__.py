"""Runs a query in real time: one long Spark job as a pipe, slots that stay, and epochs that are steps.

An epoch of real time is the part of the stream between two cuts, committed as one step. Belongs here:
readers of sources, the pipe, slots that live as long as the query, the loop that cuts epochs. Does not
belong here: the step itself (spark.step) and the work of a slot (spark.worker): micro-batches share them.
"""
