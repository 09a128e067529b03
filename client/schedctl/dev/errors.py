"""What can go wrong while a development cluster is brought up or down.

DevError                a sentence for the person at the terminal, and what to do about it
├── MissingProgram      neither etcd nor PostgreSQL is anywhere to be found (exit 5)
├── BadOverride         a `--set` that cannot be read (exit 2)
├── NotUp               the command needs a running cluster, and there is none (exit 5)
└── NotReady            it did not come up in time; carries the tails of the logs (exit 7)
"""

from __future__ import annotations


class DevError(Exception):
    """Something a person can act on; `hint` says how. `exit_code` as INTERFACE lists them."""

    exit_code = 5

    def __init__(self, what: str, hint: str | None = None) -> None:
        super().__init__(what)
        self.what = what
        self.hint = hint


class MissingProgram(DevError):
    """A program that the cluster needs is not installed."""


class BadOverride(DevError):
    """A `--set` that is not `schedd.KEY=VALUE` or `workerd.KEY=VALUE`."""

    exit_code = 2


class NotUp(DevError):
    """There is no running cluster, or not the part of it that was asked for."""


class NotReady(DevError):
    """The deadline passed before the cluster, or one part of it, was ready."""

    exit_code = 7
