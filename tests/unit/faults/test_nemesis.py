"""A fault that isn't there to the end proves nothing, and says so."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, cast

import pytest

from faults.history import Recorder
from faults.nemesis import failpoints
from faults.nemesis.disks import full, refuses
from faults.nemesis.failpoints import killed_at
from faults.nemesis.journal import Journal, NoEffect
from faults.nemesis.processes import asked_to_end, killed, stopped
from faults.world.network import Host
from faults.world.service import Service, Supervisor
from support.wait import wait_until

if TYPE_CHECKING:
    from faults.world.world import World


class Here(Host):
    """This machine as it is, without a namespace."""

    def enter(self) -> list[str]:
        return []


@pytest.fixture
def journal(tmp_path: Path) -> Journal:
    return Journal(Recorder(tmp_path / "history"))


@pytest.fixture
def service(tmp_path: Path) -> Iterator[Service]:
    here = Here("here", 1, "", "127.0.0.1", "127.0.0.1")
    service = Service("sleeper", here, ["sleep", "60"], tmp_path / "log", tmp_path)
    service.start()
    yield service
    service.kill()


def phases(journal: Journal) -> list[str]:
    lines = (journal.recorder.directory / "nemesis.jsonl").read_text().splitlines()
    return [line.partition('"phase":"')[2].partition('"')[0] for line in lines]


def wait_until_resumed(service: Service) -> None:
    service.resume()
    wait_until(lambda: not service.process.paused(), 5, "it to continue")


def test_a_fault_is_written_down_from_its_begin_to_its_healing(
    journal: Journal, service: Service
) -> None:
    with killed(journal, service):
        assert not service.alive()
    assert service.alive()
    assert phases(journal) == ["begin", "took_effect", "end", "healed"]


def test_a_killed_service_that_returned_too_soon_has_no_effect(
    journal: Journal, service: Service
) -> None:
    with pytest.raises(NoEffect, match="did not stay dead"), killed(journal, service):
        service.start()


def test_an_early_end_of_a_kill_starts_the_service_again(
    journal: Journal, service: Service
) -> None:
    with killed(journal, service) as death:
        death.end()
        service.start()
    assert service.alive()
    assert phases(journal) == ["begin", "took_effect", "end", "healed"]


def test_a_stopped_service_that_returned_too_soon_has_no_effect(
    journal: Journal, service: Service
) -> None:
    with pytest.raises(NoEffect, match="did not stay away"), asked_to_end(journal, service):
        service.start()


def test_a_paused_service_that_continued_too_soon_has_no_effect(
    journal: Journal, service: Service
) -> None:
    with pytest.raises(NoEffect, match="did not stand still"), stopped(journal, service):
        wait_until_resumed(service)


def test_a_fault_without_an_observed_effect_doesnt_count(journal: Journal) -> None:
    with pytest.raises(NoEffect, match="never seen"), journal.fault("silence", "nobody"):
        pass


def test_a_full_disk_takes_not_a_byte(tmp_path: Path) -> None:
    assert refuses(Path("/dev/full"))
    assert not refuses(tmp_path / "file")


def test_a_folder_without_a_disk_of_its_own_is_not_filled(journal: Journal, tmp_path: Path) -> None:
    with pytest.raises(NoEffect, match="no disk"), full(journal, tmp_path, lambda: True):
        pass
    assert list(tmp_path.glob(".nemesis")) == []


def test_the_log_of_a_service_is_read_from_a_mark(service: Service) -> None:
    service.log.write_text("before\n")
    mark = service.mark()
    with service.log.open("a") as log:
        log.write("after\n")
    assert service.said_since(mark) == "after\n"


class Passer(Service):
    """A daemon that does what is armed, when the ticket of its point is there."""

    def ready(self) -> bool:
        return self.alive()


@contextmanager
def passing(folder: Path, point: str, act: str) -> Iterator[tuple[World, Passer]]:
    """A world of one such daemon and its service manager."""
    ticket = folder / point
    script = f"""
        echo 'failpoint {point} is armed: this process is being tested'
        while :; do
            if rm {shlex.quote(str(ticket))} 2>&-; then
                echo 'failpoint {point}: {act} '; kill -{act.upper()} $$
            fi
            sleep 0.02
        done"""
    here = Here("here", 1, "", "127.0.0.1", "127.0.0.1")
    service = Passer("passer", here, ["bash", "-c", script], folder / "log", folder)
    supervisor = Supervisor([service])
    service.start()
    supervisor.begin()
    world = SimpleNamespace(
        tickets=folder, members={service.name: service}, workers={service.name: service}
    )
    try:
        yield cast("World", world), service
    finally:
        supervisor.end()
        service.kill()


@pytest.mark.parametrize(
    ("point", "act"),
    [("fire.after_commit", "kill"), ("worker.after_end", "kill"), ("fire.before_commit", "stop")],
)
def test_the_service_that_takes_the_ticket_is_down_also_if_it_only_stops(
    journal: Journal, tmp_path: Path, point: str, act: str
) -> None:
    with passing(tmp_path, point, act) as (world, service):
        first = service.process
        with killed_at(journal, world, point) as victim:
            assert victim is service
            assert not first.alive()
        assert service.starts == 2, "its service manager has started it again"
    assert phases(journal) == ["begin", "took_effect", "end", "healed"]


def test_a_point_that_no_service_passes_kills_no_service(
    journal: Journal, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(failpoints, "PASSED_WITHIN", 0.1)
    with passing(tmp_path, "fire.after_commit", "kill") as (world, service):
        with (
            pytest.raises(NoEffect, match=r"a process to pass fire\.mid_batch"),
            killed_at(journal, world, "fire.mid_batch"),
        ):
            pass
        assert service.alive()
        assert not (tmp_path / "fire.mid_batch").exists()
