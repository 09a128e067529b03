"""The leader: election, terms, the shard map, recovery."""
