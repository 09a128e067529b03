"""Calls on the cluster and its workers."""
