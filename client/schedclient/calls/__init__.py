"""Calls, grouped by noun."""
