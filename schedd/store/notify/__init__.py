"""Rows of the notification outbox."""
