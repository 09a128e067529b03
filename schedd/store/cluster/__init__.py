"""Rows of the cluster: tenures, shards, fences, workers, events."""
