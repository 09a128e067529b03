"""The audit log of calls."""
