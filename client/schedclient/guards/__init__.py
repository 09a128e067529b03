"""Guards: targets that reject writes of a stale attempt."""
