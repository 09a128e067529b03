"""Pages of runs and dead letters."""
