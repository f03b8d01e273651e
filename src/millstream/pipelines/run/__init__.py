"""The parts of a run: plan, preparation, queries, supervisor, writers, progress, failures."""
