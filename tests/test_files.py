"""Atomic writes: the old content or the new one, permissions by the umask, no temporary file left."""

import os
import threading
import time

import pytest

from regard import files
from regard.files import atomic_write, check_writable, remove_leftovers, write_text


@pytest.fixture
def umask():
    """Files that the group may read, and others may not."""
    before = os.umask(0o027)
    yield
    os.umask(before)


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def test_the_new_content_replaces_the_old_one(tmp_path):
    path = tmp_path / "a.txt"
    path.write_text("old")
    with atomic_write(path) as temporary:
        temporary.write_text("new")
        assert path.read_text() == "old"
    assert path.read_text() == "new"
    assert names(tmp_path) == ["a.txt"]


def test_a_folder_appears_as_a_whole(tmp_path):
    with atomic_write(tmp_path / "model") as temporary:
        temporary.mkdir()
        (temporary / "config.json").write_text("{}")
        assert not (tmp_path / "model").exists()
    assert names(tmp_path) == ["model"]
    assert names(tmp_path / "model") == ["config.json"]


@pytest.mark.parametrize("folder", [True, False])
def test_an_error_leaves_the_old_content_and_no_temporary_file(tmp_path, folder):
    path = tmp_path / "a"
    path.write_text("old")

    def fail():
        with atomic_write(path) as temporary:
            temporary.mkdir() if folder else temporary.write_text("ne")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fail()
    assert path.read_text() == "old"
    assert names(tmp_path) == ["a"]


@pytest.mark.usefixtures("umask")
def test_permissions_follow_the_umask_even_if_the_writer_chose_others(tmp_path):
    with atomic_write(tmp_path / "private") as temporary:
        temporary.touch(mode=0o600)
    with atomic_write(tmp_path / "folder") as temporary:
        temporary.mkdir()
    assert (tmp_path / "private").stat().st_mode & 0o777 == 0o640
    assert (tmp_path / "folder").stat().st_mode & 0o777 == 0o750


@pytest.mark.parametrize("sync", [True, False])
def test_sync_waits_for_the_disk_before_the_file_is_renamed(tmp_path, monkeypatch, sync):
    calls = []
    for name in ("fsync", "replace"):
        call = getattr(os, name)
        monkeypatch.setattr(files.os, name, lambda *given, name=name, call=call: (calls.append(name), call(*given)))
    with atomic_write(tmp_path / "a", sync=sync) as temporary:
        temporary.write_text("a")
    assert calls == (["fsync", "replace"] if sync else ["replace"])


def test_the_target_of_a_link_is_replaced_and_the_link_stays(tmp_path):
    (tmp_path / "link").symlink_to("target")
    write_text(tmp_path / "link", "text")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "target").read_text() == "text"


def test_a_pipe_is_written_to(tmp_path):
    path, received = tmp_path / "pipe", []
    os.mkfifo(path)
    check_writable(path)
    reader = threading.Thread(target=lambda: received.append(path.read_text()))
    reader.start()
    write_text(path, "text")
    reader.join()
    assert received == ["text"]
    assert path.is_fifo()


def test_old_leftovers_of_the_same_name_are_removed(tmp_path):
    old, young = tmp_path / ".a.txt.0123abcd.tmp", tmp_path / ".a.txt.4567abcd.tmp"
    other, foreign = tmp_path / ".b.txt.0123abcd.tmp", tmp_path / ".a.txt.mine.tmp"
    old.mkdir()
    (old / "part").write_text("part")
    for path in (young, other, foreign):
        path.write_text("part")
    for path in (old, other, foreign):
        os.utime(path, (time.time() - 2 * files.LEFTOVER_AGE,) * 2)
    write_text(tmp_path / "a.txt", "whole")
    assert names(tmp_path) == sorted([young.name, other.name, foreign.name, "a.txt"])
    remove_leftovers(tmp_path)
    assert names(tmp_path) == sorted([young.name, foreign.name, "a.txt"])


def test_what_cannot_be_written_is_known_before_the_work(tmp_path):
    check_writable(tmp_path / "new" / "a.json")
    assert names(tmp_path / "new") == []
    (tmp_path / "file").write_text("")
    with pytest.raises(FileExistsError, match=r"file/a\.json cannot be written: File exists"):
        check_writable(tmp_path / "file" / "a.json")
