"""Permission to act: membership, tenures, shards, ownership, worker leases."""
