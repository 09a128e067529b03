"""Delivery of results: spool, sender, upload."""
