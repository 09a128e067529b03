"""Python handlers: event loops, subprocesses, payload types."""
