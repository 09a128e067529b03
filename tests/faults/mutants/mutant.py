"""Mutant: a product with one deliberate fault."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from faults.mutants.edits import Edit
from faults.mutants.trials import Trial


@dataclass(frozen=True, slots=True)
class Mutant:
    """A build without one promise. `lacks`: in words. `caught_by`: the invariant that it breaks."""

    name: str
    lacks: str
    edits: Sequence[Edit]
    trial: Trial
    caught_by: str
