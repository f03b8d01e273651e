"""Checks over what a run has shown, simulated or real: histories, states, convergence, the verdict."""
