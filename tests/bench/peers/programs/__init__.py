"""What runs in the peers' environments, not in ours: their jobs, and how these are put in."""
