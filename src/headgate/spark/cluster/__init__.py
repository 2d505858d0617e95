"""Sessions, hosts and executors.

Belongs here: the Spark session as headgate wants it, looking at hosts before a job runs, executors
that follow slots, where a checkpoint lies. Does not belong here: anything of one query's batches.
"""
