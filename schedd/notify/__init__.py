"""Notifications: deliver the outbox."""
