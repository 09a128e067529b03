"""Jobs: definitions, chains, labels and notifications. Pure."""
