"""Timers: which scheduled times fire, which are recorded without a run, and backfills. Pure."""
