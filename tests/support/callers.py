"""Callers in tests."""

from schedd.core.auth.rights import EVERY, CallerIdentity, IdentityKind, Role

TESTER = CallerIdentity(IdentityKind.ANYBODY, "tester", {EVERY: Role.ADMIN})
"""A caller that may do everything, `tester` in the audit log."""
