"""Runs a query in real time: one long Spark job as a pipe, slots that stay, and epochs that are steps.

Here belongs what drives the steps of a query without a batch of Spark's: readers of sources, the pipe,
slots that live as long as the query, and the loop that cuts epochs. What a step means, commits and
delivers is `spark.step`'s, and what a slot does `spark.worker`'s: both modes share them.
"""
