"""Runs that no timer creates: backfills, chains, redrives."""
