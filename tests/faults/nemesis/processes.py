"""Faults of one process: killed, stopped, asked to end."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager

from faults.nemesis.journal import Fault, Journal, NoEffect
from faults.world.service import Service
from support.wait import wait_until

READY_WITHIN = 45.0


@contextmanager
def killed(journal: Journal, service: Service) -> Iterator[Fault]:
    """SIGKILL; started again at the end of the block, or by the code that ends the fault before."""
    with journal.fault("kill -9", service.name, pid=service.pid) as fault:
        service.kill()
        if service.alive():
            raise NoEffect(f"{service.name} outlived SIGKILL")
        fault.took_effect(what="the process is gone")
        try:
            yield fault
            if not fault.ended and service.alive():
                raise NoEffect(f"{service.name} did not stay dead to the end")
        finally:
            fault.end()
            _back(service)


@contextmanager
def stopped(journal: Journal, service: Service) -> Iterator[Fault]:
    """SIGSTOP; continued at the end of the block."""
    with journal.fault("SIGSTOP", service.name, pid=service.pid) as fault:
        began = time.monotonic()
        service.stop()
        fault.took_effect(what="state T")
        try:
            yield fault
            if not service.process.paused():
                raise NoEffect(f"{service.name} did not stand still to the end")
        finally:
            fault.end(stood=round(time.monotonic() - began, 3))
            service.wanted = True
            service.resume()
            if service.http:
                wait_until(service.ready, READY_WITHIN, f"{service.name} to be ready again")


@contextmanager
def asked_to_end(journal: Journal, service: Service, within: float = 20.0) -> Iterator[Fault]:
    """SIGTERM, and its end awaited; started again at the end of the block."""
    with journal.fault("SIGTERM", service.name, pid=service.pid) as fault:
        began = time.monotonic()
        if not service.terminate(within):
            service.process.send(signal.SIGKILL)
            raise NoEffect(f"{service.name} did not end within {within:g} s of SIGTERM")
        fault.took_effect(what="it ended", took=round(time.monotonic() - began, 3))
        try:
            yield fault
            if service.alive():
                raise NoEffect(f"{service.name} did not stay away to the end")
        finally:
            fault.end()
            _back(service)


def _back(service: Service) -> None:
    if not service.alive():
        service.start()
    if service.http:
        wait_until(service.ready, READY_WITHIN, f"{service.name} to be ready again")
