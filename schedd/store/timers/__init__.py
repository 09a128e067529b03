"""Rows of timers: fire, backfills, accounted times."""
