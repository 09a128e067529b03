"""The contract of every result store, whatever is behind it."""

from __future__ import annotations

import hashlib
import random
from pathlib import Path
from uuid import uuid4

import pytest

from schedkit.objects import (
    PART,
    Damaged,
    NoSuchObject,
    Objects,
    StoreAway,
    log_key,
    open_objects,
    parts,
    place_of,
    result_key,
)


def file_of(folder: Path, content: bytes) -> Path:
    file = folder / uuid4().hex
    file.write_bytes(content)
    return file


@pytest.mark.parametrize("size", [0, 1, PART - 1, PART, PART + 1, 12 << 20])
def test_a_stored_object_is_read_back_whole(objects: Objects, tmp_path: Path, size: int) -> None:
    content = random.Random(size).randbytes(size)
    key = log_key("default", str(uuid4()), 7 << 32)
    objects.put(key, file_of(tmp_path, content))
    digest = hashlib.sha256(content).digest()
    assert b"".join(parts(objects, key, size, digest)) == content


def test_a_part_is_read_alone(objects: Objects, tmp_path: Path) -> None:
    key = result_key("default", str(uuid4()), 1)
    objects.put(key, file_of(tmp_path, b"0123456789"))
    assert objects.read(key, 3, 4) == b"3456"
    assert objects.read(key, 8, 2) == b"89"


def test_a_missing_object_is_reported_as_missing(objects: Objects) -> None:
    with pytest.raises(NoSuchObject):
        objects.read(log_key("default", str(uuid4()), 1), 0, 10)


def test_an_object_changed_in_the_store_is_detected_before_its_last_part(
    objects: Objects, tmp_path: Path
) -> None:
    key = log_key("default", str(uuid4()), 1)
    content = bytes(2 * PART)
    objects.put(key, file_of(tmp_path, content[:-1] + b"!"))
    reading = parts(objects, key, len(content), hashlib.sha256(content).digest())
    assert next(reading) == content[:PART]
    with pytest.raises(Damaged):
        next(reading)


def test_a_truncated_object_is_detected(objects: Objects, tmp_path: Path) -> None:
    key = log_key("default", str(uuid4()), 1)
    objects.put(key, file_of(tmp_path, b"short"))
    with pytest.raises((Damaged, StoreAway)):
        list(parts(objects, key, 3 * PART, hashlib.sha256(bytes(3 * PART)).digest()))


def test_a_removed_object_is_deleted_and_no_other(objects: Objects, tmp_path: Path) -> None:
    run, other = str(uuid4()), str(uuid4())
    keys = [log_key("default", run, 1), result_key("default", run, 1), log_key("default", run, 2)]
    kept = [log_key("default", other, 1), log_key("elsewhere", run, 1)]
    for key in (*keys, *kept):
        objects.put(key, file_of(tmp_path, b"content"))
    objects.remove(keys[0])
    for key, there in [(keys[0], False), (keys[1], True), (keys[2], True)]:
        assert exists(objects, key) is there
    objects.remove(place_of("default", run))
    assert [exists(objects, key) for key in (*keys, *kept)] == [False] * 3 + [True] * 2


@pytest.mark.parametrize("namespace", ["", "Team A/B", "..", "é", "x" * 500, "a\0b", "\udc80"])
def test_objects_are_stored_for_any_namespace_text(
    objects: Objects, tmp_path: Path, namespace: str
) -> None:
    run = str(uuid4())
    key = log_key(namespace, run, 1)
    objects.put(key, file_of(tmp_path, b"content"))
    assert objects.read(key, 0, 100) == b"content"
    objects.remove(place_of(namespace, run))
    assert not exists(objects, key)


def test_removing_a_missing_object_is_fine_and_removes_no_other(
    objects: Objects, tmp_path: Path
) -> None:
    run, missing = str(uuid4()), str(uuid4())
    key, never = log_key("default", run, 1), log_key("default", missing, 1)
    objects.put(key, file_of(tmp_path, b"content"))
    for place in (never, place_of("default", missing), result_key("default", run, 1)):
        objects.remove(place)
    assert objects.read(key, 0, 100) == b"content"
    assert not exists(objects, never)
    objects.remove(key)
    objects.remove(key)
    assert not exists(objects, key), "twice is as once"


def test_a_store_that_answers_passes_its_check(objects: Objects) -> None:
    objects.check()


@pytest.mark.parametrize(
    "key",
    ["", "/", "..", "a/../b", "../a", "a//b", "/etc/passwd", "a/./b", "a/b/", "a\0b", "a/b\n", "é"],
)
def test_an_invalid_key_reaches_no_store(objects: Objects, tmp_path: Path, key: str) -> None:
    with pytest.raises(ValueError, match="valid key of an object"):
        objects.put(key, file_of(tmp_path, b"content"))
    with pytest.raises(ValueError, match="valid key of an object"):
        objects.read(key, 0, 1)
    with pytest.raises(ValueError, match="valid key of an object"):
        objects.remove(key + "/")


def test_a_missing_store_is_unavailable(tmp_path: Path) -> None:
    options = {"endpoint": "http://127.0.0.1:1", "region": "us-east-1", "allow_http": "true"}
    keys = {"access_key_id": "test", "secret_access_key": "test"}
    nowhere = open_objects("s3://bucket/prefix", options | keys)
    with pytest.raises(StoreAway):
        nowhere.put("default/run/1/log", file_of(tmp_path, b"content"))
    with pytest.raises(StoreAway):
        nowhere.check()


def exists(objects: Objects, key: str) -> bool:
    try:
        objects.read(key, 0, 1)
    except NoSuchObject:
        return False
    return True
