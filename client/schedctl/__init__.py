"""The command line of schedd.

    __main__ ─▶ app (the root group) ─▶ commands/* ─▶ session ─▶ schedclient
                                            │
                                            ├─▶ output   (what was asked for, on stdout)
                                            └─▶ failure  (three lines on stderr, and the exit code)

Invariants
- Data goes to stdout, messages to stderr; off a terminal nothing is coloured and nothing is cut.
- Exit codes are those of `failure.EXIT_CODES` alone.
- What isn't built yet stands in `unbuilt` and answers by its name.
"""
