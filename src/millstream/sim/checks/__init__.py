"""Checks of the evidence of a run, simulated or real: histories, states, convergence, verdict."""
