"""Reproduces the figures of the DRRS paper on the dataflow simulator.

One module per figure; `workloads` holds the jobs, `compare` runs methods on them and measures. A
figure says how many records an element stands for (`records_per_element`), how long it runs
(`length_s`) and for how long latency has to be stable (`stable_s`).
"""
