"""`python -m almanac` (from tests/): what `make cron-long` runs; a million triples by default.

Triples are drawn by seed, so a run can be cut short and taken up again (`--seed S --first N`, which
each line of progress prints), and a triple that differs can be tried again alone. Exit code 1: one
differed.
"""

import argparse
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from itertools import islice
from random import SystemRandom
from time import monotonic, process_time

from almanac.trials import PER_WINDOW, Tally, Wrong, windows

TRIPLES = 1_000_000
_CHUNK = 250
"""Windows tried by one process before it says so: 5,000 triples."""


def main(arguments: Sequence[str]) -> int:
    """Try, tell how far it has come, and say by the exit code what was found."""
    options = _parser().parse_args(arguments)
    seed = SystemRandom().randrange(1_000_000) if options.seed is None else options.seed
    last = options.first + max(1, options.triples // PER_WINDOW)
    print(f"seed {seed}, windows {options.first} to {last - 1}", flush=True)
    began, tally = monotonic(), Tally()
    try:
        for chunk, tried, spent in _tried(seed, options.first, last, options.processes):
            tally.add(tried)
            pace = len(chunk) * PER_WINDOW / spent
            print(
                f"{monotonic() - began:7.0f} s  {tally.triples:9,} triples, all alike; "
                f"{pace:,.0f}/s of processor; continue: --seed {seed} --first {chunk.stop}",
                flush=True,
            )
    except Wrong as wrong:
        print(f"DIFFERS: {wrong}", file=sys.stderr)
        return 1
    print(tally.summary())
    return 0


def _tried(
    seed: int, first: int, last: int, processes: int
) -> Iterator[tuple[range, Tally, float]]:
    """The chunks in their order, each with what was tried in it and the processor's seconds."""
    chunks = (range(at, min(at + _CHUNK, last)) for at in range(first, last, _CHUNK))
    if processes == 1:
        yield from (_chunk(seed, chunk) for chunk in chunks)
        return
    with ProcessPoolExecutor(processes) as pool:
        waiting = [pool.submit(_chunk, seed, chunk) for chunk in islice(chunks, 2 * processes)]
        while waiting:
            yield waiting.pop(0).result()
            waiting += [pool.submit(_chunk, seed, chunk) for chunk in islice(chunks, 1)]


def _chunk(seed: int, chunk: range) -> tuple[range, Tally, float]:
    began = process_time()
    return chunk, windows(seed, chunk), process_time() - began


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m almanac", description=__doc__)
    parser.add_argument("--triples", type=int, default=TRIPLES)
    parser.add_argument("--seed", type=int, help="drawn if not given, and printed")
    parser.add_argument("--first", type=int, default=0, help="window to begin with")
    parser.add_argument("--processes", type=int, default=1)
    return parser


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
