"""All mutants: what each lacks, the trial that shows it, the invariant that must be named."""

from __future__ import annotations

from collections.abc import Sequence

from faults.mutants.mutant import Mutant
from faults.mutants.of_members import OF_MEMBERS
from faults.mutants.of_schedules import OF_SCHEDULES
from faults.mutants.of_workers import OF_WORKERS

MUTANTS: Sequence[Mutant] = (*OF_MEMBERS, *OF_WORKERS, *OF_SCHEDULES)
