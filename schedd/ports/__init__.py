"""Protocols for dependencies that have several implementations, or that their users can't import.

    clock, coordination, notifications, objects     several implementations, in tests too
    members                                         implemented above the stages and calls

A method either completes or raises `schedkit.errors.Unavailable`; a refusal is a returned value.
PostgreSQL has no protocol: stages and calls use the classes of `store/`.
"""

from schedd.ports.clock import ClusterClock
from schedd.ports.coordination import Coordination, KeepLease, LeaseKeeper
from schedd.ports.members import CheckupFacts, Refusals, WakeUps
from schedd.ports.notifications import Sender
from schedd.ports.objects import ResultObjects

__all__ = [
    "CheckupFacts",
    "ClusterClock",
    "Coordination",
    "KeepLease",
    "LeaseKeeper",
    "Refusals",
    "ResultObjects",
    "Sender",
    "WakeUps",
]
