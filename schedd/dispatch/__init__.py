"""Runs to workers: ready queue, limits, assignments, broadcasts."""
