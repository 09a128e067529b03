"""Rows of runs, read for people."""
