"""The cluster: membership, partition, shard map, worker liveness, data loss. Pure."""
