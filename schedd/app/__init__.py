"""Process of a member: composition, listeners, readiness, and the commands beside the daemon."""
