"""Changes of runs: subscriptions and snapshots for callers that watch."""
