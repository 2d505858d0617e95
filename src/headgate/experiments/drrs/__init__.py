"""The figures of the DRRS paper, on the dataflow simulator.

One module per figure; `workloads` holds the jobs, `compare` runs methods on them and measures. A
figure says how many records an element stands for (`records_per_element`) and, of quick runs, by how
much state, times and rates were scaled down.
"""
