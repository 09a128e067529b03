"""Rows that the owner reviews: deadlines, retention, statistics."""
