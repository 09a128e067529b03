"""The worker's process: composition, settings, HTTP listener, metrics."""
