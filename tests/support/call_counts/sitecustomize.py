"""Count the function calls of a daemon in a test. Python imports this file at the start of each
process whose PYTHONPATH names its folder.

    CALL_COUNTS=/folder PYTHONPATH=tests/support/call_counts python -m schedd …
    /folder/ask  ──▶  /folder/schedd: the text of `ask`, and the calls of Python functions in all
                      threads until then

A new text in `ask` is answered within EVERY.

The profiler is written in C and counts calls only. It makes a process about half as fast.
"""

import contextlib
import cProfile
import os
import sys
import threading
import time
from pathlib import Path

EVERY = 0.2
"""Seconds between two looks at `ask`."""
DAEMONS = ("schedd", "workerd")


def count_calls(folder: Path, name: str) -> None:
    """Count the calls of this process, until its end."""
    profiles: list[cProfile.Profile] = []

    def enable(*_: object) -> None:
        profiles.append(cProfile.Profile(subcalls=False, builtins=False))
        profiles[-1].enable()

    def answer() -> None:
        threading.setprofile(enable)  # threads that start from now on; not this one
        answered = ""
        while True:
            time.sleep(EVERY)
            with contextlib.suppress(FileNotFoundError):
                if (asked := (folder / "ask").read_text()) != answered:
                    stats = [entry for profile in [*profiles] for entry in profile.getstats()]
                    part = folder / f".{name}"
                    part.write_text(f"{asked} {sum(entry.callcount for entry in stats)}")
                    part.rename(folder / name)
                    answered = asked

    threading.Thread(target=answer, name="call counts", daemon=True).start()
    enable()


if target := os.environ.get("CALL_COUNTS"):
    words = sys.orig_argv
    module = words[words.index("-m") + 1] if "-m" in words[:-1] else ""
    if module in DAEMONS:
        count_calls(Path(target), module)
