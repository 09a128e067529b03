"""Calls between members."""
