"""The worker's streams to the members."""
