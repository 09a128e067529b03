"""Next instants against two other readings of the same rules, over the zones that catch mistakes.

The almanac walks through the minutes of real time and knows nothing of masks, segments or searches;
cronsim is the other reading, where the dialects agree. Each triple of expression, zone and window
is asked for its instants, from where the search starts, for counts and for steps: see
`almanac/trials.py`. CRON_TRIPLES=100000 tries more, SEED=7 the same ones again; `make cron-long`
tries a million.
"""

import os
from collections.abc import Callable
from random import SystemRandom
from time import process_time

from almanac import trials

HERE = "tests/properties/test_cron_properties.py"
TRIPLES = int(os.environ.get("CRON_TRIPLES", "2000"))
SEED = int(os.environ.get("SEED") or SystemRandom().randrange(1_000_000))


def test_next_instants_are_those_of_the_rules_and_of_cronsim(
    figure: Callable[[str], None],
) -> None:
    began = process_time()
    try:
        tally = trials.windows(SEED, range(TRIPLES // trials.PER_WINDOW))
    except trials.Wrong as wrong:
        wrong.add_note(f"again: SEED={SEED} make test TESTS={HERE}")
        raise
    figure(f"cron, seed {SEED}: {tally.summary()}; {process_time() - began:.0f} s of processor")
    assert tally.triples >= TRIPLES - trials.PER_WINDOW
    assert tally.on_a_change >= tally.triples // 2, "half of them where clocks change"
    assert tally.against_cronsim > tally.triples // 5, "cronsim was asked too"
    assert tally.instants > tally.triples * 20
    if TRIPLES < 5000:
        return  # so few windows may miss a zone
    assert set(tally.zones) == set(trials.ZONES)
