"""Guards: targets that reject what a stale attempt writes."""
