"""Who may act: membership, tenures, shards, ownership, worker leases."""
