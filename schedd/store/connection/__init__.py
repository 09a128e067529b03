"""Connections to PostgreSQL: pools, transactions, errors, server selection."""
