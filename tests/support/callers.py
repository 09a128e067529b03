"""Who calls in tests."""

from schedd.core.jobs.rights import EVERY, Identity, IdentityKind, Role

TESTER = Identity(IdentityKind.ANYBODY, "tester", {EVERY: Role.ADMIN})
"""Who may do everything, and is `tester` in the audit."""
