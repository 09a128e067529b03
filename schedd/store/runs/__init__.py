"""Rows of runs, read for users."""
