"""Rows of results: transitions, chains, dead letters, redrives."""
