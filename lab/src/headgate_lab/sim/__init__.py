"""Provides more simulators than `headgate.whatif`: single records, pools, fleets, a shared join."""
