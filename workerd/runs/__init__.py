"""Assigned runs: delayed start, attempts, progress."""
