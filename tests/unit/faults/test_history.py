"""A history is read as it was written, by any writer."""

from __future__ import annotations

import subprocess
import threading
from pathlib import Path

import pytest

from faults.history import (
    Change,
    ClientEvent,
    Commit,
    Definition,
    History,
    Leftovers,
    Meta,
    Nemesis,
    NoHistory,
    ProbeEvent,
    Recorder,
    Resource,
    Schedule,
    Stall,
)

META = Meta("leader-kill", 7, 100.0, 200.0, 3.0, 3.0, 6.0, 5.0, quiet=((100.0, 130.0),))


@pytest.fixture
def recorder(tmp_path: Path) -> Recorder:
    """A history that was begun."""
    recorder = Recorder(tmp_path / "run")
    recorder.meta(META)
    return recorder


def test_a_recorded_history_is_read_back(recorder: Recorder) -> None:
    definition = Definition(101.0, None, "default", "tick", 1, Schedule(cron="* * * * * *"), op=1)
    calls = (
        ClientEvent(1, "invoke", 101.0, "create", {"name": "tick"}),
        ClientEvent(1, "ok", 101.2, "create", answer={"job_id": "j", "generation": 1}),
    )
    fault = Nemesis(120.0, 1, "kill", "schedd-1", "took_effect", {"pid": 7})
    commit = Commit("0/1A", 740, 101.1, (Change("jobs", "insert", {"job_id": "j", "note": None}),))
    resource = Resource(102.0, "schedd-1", 7, 50_000, 40, 12, connections=5, phase="before")

    recorder.job(definition)
    for call in calls:
        recorder.client(call)
    recorder.nemesis(fault)
    recorder.commits([commit])
    recorder.final("runs", [{"run_id": "r", "digest": None}])
    recorder.final("dead_letters", [])
    recorder.resource(resource)
    recorder.stall(Stall(103.0, 0.4))
    recorder.leftovers(Leftovers(processes=("sleep 60 (pid 9)",)))

    assert History.read(recorder.directory) == History(
        meta=META,
        jobs=(definition,),
        clients=calls,
        nemesis=(fault,),
        commits=(commit,),
        database={"runs": ({"run_id": "r", "digest": None},), "dead_letters": ()},
        resources=(resource,),
        stalls=(Stall(103.0, 0.4),),
        leftovers=Leftovers(processes=("sleep 60 (pid 9)",)),
    )


def test_probe_jobs_write_with_the_shell_alone(recorder: Recorder) -> None:
    line = (
        '{"event":"start","run":"r","job":"tick","nominal":"1970-01-01T00:02:00.000Z",'
        '"at":120.25,"token":5,"attempt":1,"worker":"w1"}'
    )
    subprocess.run(
        ["/bin/sh", "-c", f"echo '{line}' >>{recorder.probe_file('w1')}"], check=True, timeout=5
    )
    (event,) = History.read(recorder.directory).probes
    assert event == ProbeEvent("start", "r", "tick", "1970-01-01T00:02:00.000Z", 120.25, 5, 1, "w1")
    assert event.instant == 120.0


def test_many_writers_never_mix_their_lines(recorder: Recorder) -> None:
    def write(who: int) -> None:
        mine = Recorder(recorder.directory)
        for n in range(200):
            mine.nemesis(Nemesis(float(n), who, "pause", "x" * 300, "begin"))

    threads = [threading.Thread(target=write, args=(who,)) for who in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    history = History.read(recorder.directory)
    assert len(history.nemesis) == 1600
    assert not history.damaged


def test_a_line_that_was_cut_is_kept_as_damage(recorder: Recorder) -> None:
    recorder.nemesis(Nemesis(1.0, 1, "kill", "w1", "begin"))
    with (recorder.directory / "nemesis.jsonl").open("a") as file:
        file.write('{"at": 2.0, "id": 1, "fau')
    history = History.read(recorder.directory)
    assert len(history.nemesis) == 1
    assert [(damaged.file, damaged.line) for damaged in history.damaged] == [("nemesis.jsonl", 2)]


def test_a_misspelt_field_is_damage(recorder: Recorder) -> None:
    with (recorder.directory / "nemesis.jsonl").open("a") as file:
        file.write('{"at":2.0,"id":1,"fault":"kill","traget":"w1","phase":"begin"}\n')
    (damaged,) = History.read(recorder.directory).damaged
    assert "traget" in damaged.why


def test_a_directory_without_a_history_is_reported(tmp_path: Path) -> None:
    with pytest.raises(NoHistory, match=r"no meta\.json"):
        History.read(tmp_path)


def test_a_history_of_another_version_is_reported(recorder: Recorder) -> None:
    meta = recorder.directory / "meta.json"
    recorder.meta(Meta("rows", 1, 0.0, 1.0, 3.0, 3.0, 5.0, 4.0))
    meta.write_text(meta.read_text().replace('"version": 1', '"version": 99'))
    with pytest.raises(NoHistory, match="of version 99; this reads 1"):
        History.read(recorder.directory)
