"""Jobs: definitions, chains, labels, notifications, access tokens and rights. Pure."""
