"""This version reads the data of the version before, and that one reads data of this one.

The data is the file `tests/golden/before.json`, which N-1's own code wrote (`support/golden.py`):
messages with every field set, its descriptors, its values in etcd and in a worker's spool.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from google.api.annotations_pb2 import http
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.descriptor import Descriptor
from google.protobuf.descriptor_pb2 import (
    FieldDescriptorProto,
    FileDescriptorProto,
    MethodOptions,
)
from google.protobuf.message import Message
from google.protobuf.unknown_fields import UnknownFieldSet

from schedd.api import paging
from schedd.core.cluster import membership, shard_map
from schedd.core.cluster.coordination import CoordinationEntry
from schedd.core.ids import Id
from schedproto.v1 import worker_service_pb2 as pb
from support import golden
from support.examples import examples
from support.proto_breaks import breaking_changes
from support.version_before import BEFORE
from workerd.delivery.spool import Spool
from workerd.process import process_journal

KEPT = golden.kept()
OLD_FILES = descriptor_pb2.FileDescriptorSet.FromString(base64.b64decode(KEPT["descriptors"])).file
NEW_FILES = golden.descriptor_set().file
NEW = {message.full_name: message for message in golden.messages()}


def pool_of_the_version_before() -> descriptor_pool.DescriptorPool:
    pool = descriptor_pool.DescriptorPool()
    for file in OLD_FILES:
        pool.AddSerializedFile(file.SerializeToString())
    return pool


POOL = pool_of_the_version_before()


def old(name: str) -> type[Message]:
    """The class that N-1 has for this message."""
    found = POOL.FindMessageTypeByName(name)
    assert isinstance(found, Descriptor)
    return message_factory.GetMessageClass(found)


def new(name: str) -> type[Message]:
    """Return the class of this version."""
    return message_factory.GetMessageClass(NEW[name])


def tree(message: Message) -> dict[str, Any]:
    """Return the set fields of a message by name, for any class. Enums are their numbers."""

    def plain(value: Any) -> Any:
        return tree(value) if isinstance(value, Message) else value

    def of(field: Any, value: Any) -> Any:
        if field.message_type is not None and field.message_type.GetOptions().map_entry:
            return {key: plain(value[key]) for key in value}
        return [plain(each) for each in value] if field.is_repeated else plain(value)

    return {field.name: of(field, value) for field, value in message.ListFields()}


def unknown(message: Message) -> Iterator[str]:
    """Where in it something is that its class doesn't know."""
    if len(UnknownFieldSet(message)):
        yield message.DESCRIPTOR.full_name
    for field, value in message.ListFields():
        if field.message_type is not None and not field.message_type.GetOptions().map_entry:
            for inner in value if field.is_repeated else [value]:
                yield from unknown(inner)


def is_contained(part: Any, whole: Any) -> bool:
    """Whether all that stands in this tree stands in that one, too."""
    if isinstance(part, dict):
        return all(key in whole and is_contained(part[key], whole[key]) for key in part)
    if isinstance(part, list):
        return len(part) == len(whole) and all(map(is_contained, part, whole))
    return bool(part == whole)


def test_messages_of_the_previous_version_are_read_and_returned_completely() -> None:
    for name, texts in KEPT["messages"].items():
        for wire in map(base64.b64decode, texts):
            written, read = old(name).FromString(wire), new(name).FromString(wire)

            assert tree(read) == tree(written), name
            assert [*unknown(read)] == [], name
            assert old(name).FromString(read.SerializeToString()) == written, name


def test_messages_of_this_version_are_read_by_the_one_before_and_lose_nothing_there() -> None:
    for name in KEPT["messages"]:
        for written in examples(NEW[name], message_factory.GetMessageClass):
            read = old(name).FromString(written.SerializeToString())

            assert is_contained(tree(read), tree(written)), name
            assert new(name).FromString(read.SerializeToString()) == written, name


def test_the_examples_of_a_message_set_each_of_its_fields() -> None:
    for name, texts in KEPT["messages"].items():
        found = [old(name).FromString(base64.b64decode(text)) for text in texts]

        seen = {field.number for example in found for field, _ in example.ListFields()}

        assert seen == set(POOL.FindMessageTypeByName(name).fields_by_number), name


def test_the_file_is_of_the_version_that_counts_as_the_previous_one() -> None:
    assert KEPT["version"] == BEFORE, "run `python -m support.golden` in the folder tests"
    assert {file.name for file in OLD_FILES} >= {"schedproto/v1/worker_service.proto"}
    assert len(KEPT["messages"]) > 90


def test_no_field_of_the_previous_version_has_changed_its_meaning() -> None:
    assert breaking_changes(OLD_FILES, NEW_FILES) == []


def copied() -> dict[str, FileDescriptorProto]:
    files = {}
    for file in OLD_FILES:
        files[file.name.rpartition("/")[2]] = copy = FileDescriptorProto()
        copy.CopyFrom(file)
    return files


def result(files: dict[str, FileDescriptorProto]) -> descriptor_pb2.DescriptorProto:
    messages = files["worker_service.proto"].message_type
    return next(each for each in messages if each.name == "Result")


def drop(files: dict[str, FileDescriptorProto], *, reserve: bool) -> None:
    message = result(files)
    gone = message.field.pop(-1)
    if reserve:
        message.reserved_name.append(gone.name)
        message.reserved_range.add(start=gone.number, end=gone.number + 1)


def reuse(files: dict[str, FileDescriptorProto]) -> None:
    gone = result(files).field[-1]
    gone.name, gone.json_name = "other", "other"


def retype(files: dict[str, FileDescriptorProto]) -> None:
    result(files).field[-1].type = FieldDescriptorProto.TYPE_FIXED64


def renumber(files: dict[str, FileDescriptorProto]) -> None:
    result(files).field[-1].number += 100


def repeat(files: dict[str, FileDescriptorProto]) -> None:
    result(files).field[-1].label = FieldDescriptorProto.LABEL_REPEATED


def rename_value(files: dict[str, FileDescriptorProto]) -> None:
    enum = next(enum for file in files.values() for enum in file.enum_type)
    enum.value[-1].name = "SOMETHING_ELSE"


def drop_method(files: dict[str, FileDescriptorProto]) -> None:
    files["peer_service.proto"].service[0].method.pop(-1)


def unstream(files: dict[str, FileDescriptorProto]) -> None:
    files["worker_service.proto"].service[0].method[0].server_streaming = False


def move_path(files: dict[str, FileDescriptorProto]) -> None:
    files["job_service.proto"].service[0].method[0].ClearField("options")


def drop_message(files: dict[str, FileDescriptorProto]) -> None:
    files["worker_service.proto"].message_type.pop(-1)


@pytest.mark.parametrize(
    ("tamper", "finding"),
    [
        (lambda files: drop(files, reserve=False), "gone, and not reserved"),
        (reuse, "has another name"),
        (retype, "has another type"),
        (renumber, "gone, and not reserved"),
        (repeat, "has another label"),
        (rename_value, "is SOMETHING_ELSE"),
        (drop_method, "is gone"),
        (unstream, "has another server_streaming"),
        (move_path, "has another path"),
        (drop_message, "is gone"),
    ],
)
def test_a_change_that_breaks_the_version_before_is_reported(
    tamper: Callable[[dict[str, FileDescriptorProto]], None], finding: str
) -> None:
    files = copied()
    tamper(files)

    assert [line for line in breaking_changes(OLD_FILES, [*files.values()]) if finding in line]


def test_new_or_reserved_fields_break_nothing() -> None:
    files = copied()
    drop(files, reserve=True)
    result(files).field.add(
        name="brand_new", json_name="brandNew", number=900, type=FieldDescriptorProto.TYPE_STRING
    )

    [method, *_] = files["job_service.proto"].service[0].method
    options = MethodOptions.FromString(method.options.SerializeToString())
    options.Extensions[http].additional_bindings.add(get="/api/v1/another-way")
    method.options.CopyFrom(options)

    assert breaking_changes(OLD_FILES, [*files.values()]) == []
    back = [file for file in OLD_FILES if file.name.endswith("/worker_service.proto")]
    assert "was reserved" in "".join(breaking_changes([files["worker_service.proto"]], back))


def test_values_that_the_version_before_left_in_etcd_are_read() -> None:
    texts = KEPT["stored"]
    tenure, other = golden.TENURE, golden.OTHER

    member = membership.decode_member(
        CoordinationEntry("members/m1", texts["member"].encode(), 1, 1, 0)
    )
    assert (member.name, member.tenure, member.weight) == ("m1", tenure, 5)
    assert (member.grpc, member.http) == ("m1:7420", "m1:7421")
    assert (member.draining, member.database, member.attached) == (True, False, True)
    leader = CoordinationEntry("leader", texts["leader"].encode(), 1, 1, 0)
    assert membership.decode_leader(leader) == tenure
    heir = membership.decode_heir(CoordinationEntry("heir", texts["heir"].encode(), 1, 1, 0))
    assert (heir.tenure, heir.term) == (other, 76)
    found = shard_map.decode(texts["map"].encode())
    assert (found.term, found.timeline) == (77, 3)
    assert found.assigned == {0: tenure, 255: other}


@pytest.mark.parametrize("name", ["member", "heir", "map"])
def test_values_in_etcd_keep_the_fields_that_the_previous_version_reads(name: str) -> None:
    assert is_contained(json.loads(KEPT["stored"][name]), json.loads(golden.stored()[name]))


def test_a_journal_that_the_version_before_left_is_read(tmp_path: Path) -> None:
    file = tmp_path / "some-mark.journal"
    file.write_text(KEPT["stored"]["journal"].replace("BOOT", process_journal.boot_id()))

    left = process_journal.read_journal(file)

    assert left == process_journal.LeftoverProcesses(
        "some-mark", {4712: 123456790}, Path("/sys/fs/cgroup/some/tree")
    )
    assert golden.stored()["journal"] == KEPT["stored"]["journal"], "it reads ours, too"


def test_results_that_the_version_before_left_in_its_spool_are_read(tmp_path: Path) -> None:
    sent = map(base64.b64decode, KEPT["messages"]["schedd.v1.WorkerFrame"])
    frames = [pb.WorkerFrame(results=pb.WorkerFrame.FromString(each).results) for each in sent]
    files = [tmp_path / f"{number:012d}.results" for number in (7, 11)]
    for file, frame in zip(files, frames, strict=True):
        file.write_bytes(frame.SerializeToString())
    spool = Spool(tmp_path)

    batches = spool.load()

    spool.close()
    assert [path for path, _ in batches] == files
    assert all(each.key.run_id for _, frame in batches for each in frame.results)


def test_page_tokens_of_the_previous_version_are_read() -> None:
    tokens = KEPT["stored"]

    assert paging.read_token("jobs", tokens["page_token"], paging.time_and(Id)) == (
        golden.AT,
        golden.JOB,
    )
    assert paging.read_token("audit", tokens["number_token"], paging.number_of) == 4711


def test_values_of_rows_are_computed_as_in_the_previous_version() -> None:
    assert golden.reckoned() == KEPT["reckoned"]
