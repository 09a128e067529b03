"""The pictures of benchmarks.md, drawn from kept lines in `docs/evidence/bench`.

New lines of a shape replace the old ones in its file there; `docs/generate.py` draws them again.
"""

from pathlib import Path

from bench.plot import Group, bars, greatest_first, groups, read

HERE = Path(__file__).resolve().parent
LINES = HERE.parent / "evidence" / "bench"


def made() -> dict[Path, str]:
    """Each picture, as it should be."""
    drawn = {
        "bench-peers": bars(
            "Jobs per second: the median of three rounds, with the slowest and the fastest round",
            greatest_first(_of("peers", "rate.median", "summary", "rate.min", "rate.max")),
            mark="schedd",
        ),
        "bench-idle": bars(
            "Milliseconds by which runs start late at 1,667 runs/s, by number of idle schedules",
            _of("spread", "late_ms", "idle"),
            log=True,
        ),
        "bench-workers": bars(
            "Milliseconds by which runs start late at 100 runs/s, by number of connected workers",
            _of("simulated", "late_ms", "workers"),
        ),
    }
    return {HERE / f"{name}.svg": picture for name, picture in drawn.items()}


def _of(shape: str, value: str, by: str, *between: str) -> list[Group]:
    return groups(read(LINES / f"{shape}.jsonl"), value, [by], between)
