"""Bounds of every field that enters a process, one table for each message, and their check.

    frames       the worker's stream, calls between members        `FRAME.violations(message)`
    definitions  jobs, actions, payloads, calendars, pools         in both
    user calls   `schedd.api.request_bounds`

`rules` says how a row is written. A test fails on a field without a rule.
"""

from schedkit.bounds.definitions import DEFINITIONS
from schedkit.bounds.frames import FRAMES
from schedkit.bounds.rules import Bounds, problem

FRAME = Bounds({**DEFINITIONS, **FRAMES})
"""Checks messages from workers and from other members."""

__all__ = ["DEFINITIONS", "FRAME", "FRAMES", "Bounds", "problem"]
