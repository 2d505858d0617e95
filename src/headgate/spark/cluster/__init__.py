"""Makes sessions, checks hosts, and requests executors as slots change.

Belongs here: the Spark session with headgate's settings (session), checks of hosts before a job
runs (doctor), executors that follow slots (following), the directory of a checkpoint (location).
Does not belong here: the batches of a query (step).
"""
