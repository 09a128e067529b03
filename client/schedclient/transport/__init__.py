"""Calls over several members: methods, retries, fork."""
