"""Rows compared with workers: lost workers, deadlines, auto-pause, retention."""
