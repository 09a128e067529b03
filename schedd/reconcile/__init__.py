"""Repairs of rows: lost workers, deadlines, auto-pause, retention."""
