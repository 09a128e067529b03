"""Data that N-1 wrote, kept for N to read: `tests/golden/before.json`, from the folder `tests`:

    ../.venv/bin/python -m support.golden

`descriptors`: those of its `proto/`. `messages`: of each message examples with every field set.
`stored`: what it writes into etcd, into a worker's directory and into page tokens.
`reckoned`: what all versions must reckon alike, for it stands in rows (ids, shards, jitter).

N-1's own code writes it (`version_before`): this module runs there, too.
"""

from __future__ import annotations

import base64
import importlib
import json
import os
import pkgutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final

from google.protobuf import message_factory
from google.protobuf.descriptor import Descriptor, FileDescriptor
from google.protobuf.descriptor_pb2 import FileDescriptorProto, FileDescriptorSet

from schedd.core.ids import Id
from support.examples import examples
from support.version_before import BEFORE, Code, lay

FILE: Final = Path(__file__).parents[1] / "golden" / "before.json"
PACKAGE: Final = "schedproto.v1"
JOB, TENURE, OTHER = (Id.from_int(number << 96 | number) for number in (7, 8, 9))
SPREAD: Final = 0x9E3779B97F4A7C15F39CC0605CEDC835
AT: Final = datetime(2026, 3, 29, 0, 59, 59, 123456, UTC)


def files() -> list[FileDescriptor]:
    """The files of `proto/`, as this code has them."""
    package = importlib.import_module(PACKAGE)
    names = sorted(each.name for each in pkgutil.iter_modules(package.__path__))
    made = (n for n in names if n.endswith("_pb2"))
    return [importlib.import_module(f"{PACKAGE}.{name}").DESCRIPTOR for name in made]


def descriptor_set() -> FileDescriptorSet:
    """Return the files and all that they import, each after its imports."""
    found: dict[str, FileDescriptorProto] = {}

    def add(file: FileDescriptor) -> None:
        for needed in file.dependencies:
            add(needed)
        if file.name not in found:
            found[file.name] = FileDescriptorProto()
            file.CopyToProto(found[file.name])

    for file in files():
        add(file)
    return FileDescriptorSet(file=found.values())


def messages() -> Iterator[Descriptor]:
    """Every message of those files, but the pairs of maps."""

    def below(of: Descriptor) -> Iterator[Descriptor]:
        if not of.GetOptions().map_entry:
            yield of
            for inner in of.nested_types:
                yield from below(inner)

    for file in files():
        for message in file.message_types_by_name.values():
            yield from below(message)


def stored() -> dict[str, str]:
    """Return stored values that aren't messages: in etcd, in files of a worker, with callers."""
    from schedd.api import paging
    from schedd.core.ids import ShardId, TenureId, Term, Timeline

    membership = _module("schedd.core.cluster.membership")
    shard_map = _module("schedd.core.cluster.shard_map")
    journals = _module("workerd.process.process_journal")
    member = membership.MemberView(
        "m1", TenureId(TENURE), "m1:7420", "m1:7421", 5, "1.2.3", "2026a", True, False, True
    )
    owned = {ShardId(0): TenureId(TENURE), ShardId(255): TenureId(OTHER)}
    the_map = shard_map.ShardMap(Term(77), owned, Timeline(3))
    with tempfile.TemporaryDirectory() as folder:
        journal = journals.Journal(Path(folder), "some-mark", Path("/sys/fs/cgroup/some/tree"))
        add = getattr(journal, "add_session", None) or journal.began  # N-1's name
        end = getattr(journal, "end_session", None) or journal.ended
        add(4711, 123456789)
        add(4712, 123456790)
        end(4711)
        written = journal.path.read_text().replace(journals.boot_id(), "BOOT")
    return {
        "member": membership.encode_member(member).decode(),
        "leader": membership.encode_leader(TenureId(TENURE)).decode(),
        "heir": membership.encode_heir(membership.Heir(TenureId(OTHER), Term(76))).decode(),
        "map": shard_map.encode(the_map).decode(),
        "journal": written,
        "page_token": paging.token("jobs", AT, JOB),
        "number_token": getattr(paging, "number_token", paging.token)("audit", 4711),
    }


def _module(now: str, before: str = "") -> Any:
    """The module, by its name in this version or, where N-1's code runs, in the one before."""
    try:
        return importlib.import_module(now)
    except ModuleNotFoundError:
        return importlib.import_module(before or now)


def reckoned() -> dict[str, Any]:
    """Return values that rows hold, and that a member of another version computes again."""
    from schedd.core import ids

    partition = _module("schedd.core.cluster.partition")
    definitions = _module("schedd.core.jobs.definition")
    retry = _module("schedd.core.runs.retry")
    schedules = _module("schedd.core.schedule.compiled_schedule")
    jobs = [
        Id.from_int(number * 0x9E3779B97F4A7C15F39CC0605CEDC835 % 2**128) for number in range(1, 9)
    ]
    run = ids.scheduled_run_id(ids.JobId(JOB), AT)
    policy = definitions.RetryPolicy(max_attempts=5, backoff=timedelta(seconds=2), jitter=0.5)
    hashed = schedules.CronSchedule(("H H * * *", "H/7 * * * *"), "Europe/Berlin")
    bounds = schedules.ScheduleBounds(jitter=timedelta(minutes=5))
    compiled = schedules.compile(hashed, "default/nightly", JOB, bounds)
    return {
        "instants": _instants(compiled, 5),
        "run_id": str(run),
        "shards": [partition.shard_of(ids.JobId(job)) for job in jobs],
        "pool": partition.shard_of_pool("default", "imports"),
        "owners": list(partition.owners({"m1": 1, "m2": 2, "m3": 3}).values()),
        "token": ids.token_of(ids.Epoch(7), 9),
        "waits": [retry.wait(policy, run, n).total_seconds() for n in range(1, 5)],
        "fingerprint": retry.fingerprint(None, 3, "no file 17\nat 0xdead"),
    }


def _instants(schedule: Any, many: int) -> list[str]:
    """Nominal instants with when they are due."""
    found, at = [], AT
    for _ in range(many):
        next_one = schedule.next_after(at)
        found.append(f"{next_one.nominal.isoformat()} {next_one.due.isoformat()}")
        at = next_one.nominal
    return found


def made() -> dict[str, Any]:
    """All of it, by the code that runs."""
    wires = {
        message.full_name: [
            _text(example.SerializeToString(deterministic=True))
            for example in examples(message, message_factory.GetMessageClass)
        ]
        for message in messages()
    }
    return {
        "version": BEFORE,
        "descriptors": _text(descriptor_set().SerializeToString(deterministic=True)),
        "messages": wires,
        "stored": stored(),
        "reckoned": reckoned(),
    }


def kept() -> Mapping[str, Any]:
    """Return the data that N-1 wrote."""
    found: dict[str, Any] = json.loads(FILE.read_text("utf-8"))
    return found


def _text(data: bytes) -> str:
    return base64.b64encode(data).decode()


def written_by(code: Code) -> bytes:
    """The file as this version's own code writes it."""
    return subprocess.run(
        [code.python, "-P", "-m", "support.golden", "here"],
        env={**os.environ, "PYTHONPATH": os.fspath(Path(__file__).parents[1])},
        stdout=subprocess.PIPE,
        check=True,
    ).stdout


def main() -> None:
    """Have N-1 write it; as a part of N-1, print it."""
    if sys.argv[1:] == ["here"]:
        print(json.dumps(made(), indent=0))
        return
    with tempfile.TemporaryDirectory() as folder:
        FILE.write_bytes(written_by(lay(Path(folder))))


if __name__ == "__main__":
    main()
