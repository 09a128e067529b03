"""No rewrite that lint offers has other fire times than the expression it replaces.

Random expressions of Quartz, AWS and cron go through lint; each rewrite is judged by the meaning
that was drawn with the expression, and by a walk through real time (`almanac/foreign.py`).
FOREIGN_EXPRESSIONS=10000 tries more, SEED=7 the same ones again.
"""

import os
from collections.abc import Callable
from random import SystemRandom

from almanac import foreign
from almanac.trials import Wrong

EXPRESSIONS = int(os.environ.get("FOREIGN_EXPRESSIONS", "300"))
SEED = int(os.environ.get("SEED") or SystemRandom().randrange(1_000_000))


def test_a_rewrite_has_the_fire_times_of_the_dialect_or_says_how_they_differ(
    figure: Callable[[str], None],
) -> None:
    try:
        tally = foreign.tried(SEED, range(EXPRESSIONS))
    except Wrong as wrong:
        wrong.add_note(f"again: SEED={SEED} FOREIGN_EXPRESSIONS={EXPRESSIONS}")
        raise
    figure(f"foreign expressions, seed {SEED}: {tally.summary()}")
    assert tally.expressions == EXPRESSIONS
    if EXPRESSIONS < 100:
        return  # so few may have no rewrite of a dialect
    assert tally.rewrites > EXPRESSIONS // 4, "rewrites are offered"
    assert min(tally.dialects[name] for name in ("Quartz", "AWS", "cron")) > EXPRESSIONS // 60
