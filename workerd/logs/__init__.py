"""Logs of attempts: captured, kept, followed."""
