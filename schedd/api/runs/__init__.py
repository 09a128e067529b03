"""Calls on runs."""
