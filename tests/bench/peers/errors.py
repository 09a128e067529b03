"""Errors of a contestant; the race continues without it.

Exception
├── LeftOut   it can't run on this machine: reported once, not tried again
└── Failed    it didn't do what it was to in this round
"""

from __future__ import annotations


class LeftOut(Exception):
    """Something that it needs isn't here."""


class Failed(Exception):
    """Its command, its store or its deadline said so."""
