"""Pages of the cluster."""
