"""Runs that no timer creates: backfills, broadcasts, chains, redrives."""
