"""Timers to runs: load what is due soon, and fire it."""
