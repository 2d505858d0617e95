"""From counters to what a policy sees: instantaneous latency, rates, capacities."""
