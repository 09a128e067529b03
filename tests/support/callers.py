"""Who calls in tests."""

from schedd.core.auth.rights import EVERY, CallerIdentity, IdentityKind, Role

TESTER = CallerIdentity(IdentityKind.ANYBODY, "tester", {EVERY: Role.ADMIN})
"""Who may do everything, and is `tester` in the audit."""
