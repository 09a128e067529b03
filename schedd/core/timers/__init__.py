"""Timers: what is due, what fires, what is only accounted for. Pure."""
