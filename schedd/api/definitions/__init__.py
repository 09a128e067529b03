"""Checks of job definitions."""
