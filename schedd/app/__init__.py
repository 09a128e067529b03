"""The member's process: composition, listeners, readiness, and the commands beside the daemon."""
