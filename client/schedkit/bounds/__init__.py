"""Bounds of every field that enters a process, one table for each message, and their check.

rules       how a row is written, and the check
tables      jobs, actions, payloads, calendars, pools; the worker's stream; calls of members
user calls  `schedd.api.request_bounds`
"""

from schedkit.bounds.rules import Bounds, problem
from schedkit.bounds.tables import DEFINITIONS, FRAMES

FRAME = Bounds({**DEFINITIONS, **FRAMES})
"""Checks messages from workers and from other members."""

__all__ = ["DEFINITIONS", "FRAME", "Bounds", "problem"]
