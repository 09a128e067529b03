"""Calls on dead letters and redrives."""
