"""The command line of schedd.

    __main__ ─▶ app (the root group) ─▶ commands/* ─▶ session ─▶ schedclient
                                            │
                                            ├─▶ output   (data, on stdout)
                                            └─▶ failure  (three lines on stderr, and the exit code)

Invariants
- Data goes to stdout, messages to stderr; only on a terminal is output colored or truncated.
- Exit codes are only those of `failure.EXIT_CODES`.
"""
