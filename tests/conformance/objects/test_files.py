"""Files as a store: foreign entries in its folder are ignored."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest

from schedkit.errors import Misconfigured
from schedkit.objects import NoSuchObject, StoreAway, open_objects
from schedkit.objects.files import Files

KEY = "default/run/1/log"


@pytest.fixture
def source(tmp_path: Path) -> Path:
    file = tmp_path / "source"
    file.write_bytes(b"content")
    return file


@pytest.fixture
def store(tmp_path: Path) -> Files:
    return Files(tmp_path / "store")


@pytest.mark.parametrize("step", ["default", "default/run", "default/run/1"])
def test_a_link_on_the_way_is_not_followed(
    tmp_path: Path, store: Files, source: Path, step: str
) -> None:
    outside = tmp_path / "outside"
    (outside / "run" / "1").mkdir(parents=True)
    (outside / "1").mkdir()
    for folder in (outside, outside / "1", outside / "run" / "1"):
        (folder / "log").write_bytes(b"not theirs")
    link = tmp_path / "store" / step
    link.parent.mkdir(parents=True)
    link.symlink_to(outside)
    with pytest.raises(StoreAway):
        store.put(KEY, source)
    with pytest.raises((StoreAway, NoSuchObject)):
        store.read(KEY, 0, 100)
    try:
        store.remove("default/run/")
    except StoreAway:
        pass
    assert (outside / "log").read_bytes() == b"not theirs"
    assert (outside / "run" / "1" / "log").read_bytes() == b"not theirs"


def test_a_link_in_the_place_of_a_file_is_replaced_and_not_read(
    tmp_path: Path, store: Files, source: Path
) -> None:
    secret = tmp_path / "secret"
    secret.write_bytes(b"secret")
    folder = tmp_path / "store" / "default" / "run" / "1"
    folder.mkdir(parents=True)
    (folder / "log").symlink_to(secret)
    with pytest.raises(StoreAway):
        store.read(KEY, 0, 100)
    store.put(KEY, source)
    assert store.read(KEY, 0, 100) == b"content"
    assert secret.read_bytes() == b"secret"


def test_a_link_in_a_removed_folder_is_removed_and_not_followed(
    tmp_path: Path, store: Files
) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "file").write_bytes(b"theirs")
    folder = tmp_path / "store" / "default" / "run"
    folder.mkdir(parents=True)
    (folder / "link").symlink_to(outside)
    store.remove("default/run/")
    assert not folder.exists()
    assert (outside / "file").read_bytes() == b"theirs"


def test_a_pipe_in_the_place_of_a_file_blocks_no_reader(tmp_path: Path, store: Files) -> None:
    folder = tmp_path / "store" / "default" / "run" / "1"
    folder.mkdir(parents=True)
    os.mkfifo(folder / "log")
    with pytest.raises(StoreAway):
        store.read(KEY, 0, 100)


def test_no_reader_sees_half_a_file(store: Files, tmp_path: Path) -> None:
    contents = [bytes([n]) * 3_000_000 for n in (1, 2)]
    sources = []
    for n, content in enumerate(contents):
        (tmp_path / f"source{n}").write_bytes(content)
        sources.append(tmp_path / f"source{n}")
    store.put(KEY, sources[0])
    over = threading.Event()

    def put() -> None:
        for n in range(10):
            store.put(KEY, sources[n % 2])
        over.set()

    thread = threading.Thread(target=put)
    thread.start()
    while not over.is_set():
        assert store.read(KEY, 0, 3_000_001) in contents
    thread.join()
    assert [each.name for each in (tmp_path / "store/default/run/1").iterdir()] == ["log"]


def test_empty_folders_are_deleted_with_the_last_file(
    tmp_path: Path, store: Files, source: Path
) -> None:
    store.put(KEY, source)
    store.remove(KEY)
    assert [*(tmp_path / "store" / "default").iterdir()] == []


@pytest.mark.parametrize(
    ("url", "why"),
    [
        ("results", "isn't a valid URL"),
        ("file://results", "absolute path"),
        ("file:///a/../b", "absolute path"),
        ("ftp://host/path", "has an unknown scheme"),
        ("http://host/path", "has an unknown scheme"),
    ],
)
def test_an_invalid_store_is_refused_with_a_message(url: str, why: str) -> None:
    with pytest.raises(Misconfigured, match=why):
        open_objects(url)
