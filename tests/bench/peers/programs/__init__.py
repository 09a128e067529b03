"""Programs that run in the peers' environments: their jobs, and how they are enqueued."""
