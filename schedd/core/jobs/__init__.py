"""What a job says: its definition, chains, labels, notifications and rights. Pure."""
