"""Callers: access tokens, identities, roles and rights. Pure."""
