"""Values that calls return."""
