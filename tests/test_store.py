import errno
import fcntl
import os
import signal
import threading
import time
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
import torch

from graddiv import store
from graddiv.errors import GradDivError
from graddiv.runs import Log, read_log
from tests.helpers import room


def fails_with(code: int) -> object:
    def fail(*_: object, **__: object) -> None:
        raise OSError(code, os.strerror(code))

    return fail


def test_a_write_that_fails_leaves_the_file_from_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "file"
    store.write(path, b"old")
    with room(1000), pytest.raises(GradDivError, match=f"cannot write {path}: File too large; the file from before"):
        store.write(path, b"x" * 5000)
    monkeypatch.setattr(os, "fsync", fails_with(errno.ENOSPC))
    with pytest.raises(GradDivError, match="No space left on device; the file from before is untouched"):
        store.write(path, b"new")
    with pytest.raises(GradDivError, match=r"No space left on device$"):
        store.write(tmp_path / "other", b"new")
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]


def test_a_read_only_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for fails in ("open", "unlink"):  # a file system that is mounted so refuses even to delete what is not there
        monkeypatch.setattr(Path, fails, fails_with(errno.EROFS))
    for write in (lambda: store.write(tmp_path / "file", b""), lambda: Log(tmp_path / "log")):
        with pytest.raises(GradDivError, match=r"cannot write .*: Read-only file system"):
            write()
    monkeypatch.setattr(os, "open", fails_with(errno.EROFS))
    with pytest.raises(GradDivError, match=r"cannot write into .*: Read-only file system"), store.locked(tmp_path):
        pass
    monkeypatch.undo()
    (tmp_path / "file").touch()
    with pytest.raises(GradDivError, match=r"cannot make the directory .*: Not a directory"):
        store.make_directory(tmp_path / "file" / "below")


def test_tensors_and_arrays_come_back_with_their_description(tmp_path: Path) -> None:
    t = torch.arange(24.0).reshape(1, 2, 3, 4).to(memory_format=torch.channels_last)
    tensors = {"a": t, "view": t[0, 0], "count": torch.tensor(3), "none": torch.zeros(0)}
    store.write_tensors(tmp_path / "t", tensors, {"step": 3, "x": [1.5]})
    found, description = store.read_tensors(tmp_path / "t")
    assert description == {"step": 3, "x": [1.5]}
    assert found.keys() == tensors.keys()
    assert all(torch.equal(found[name], tensors[name]) for name in tensors)
    arrays = {"flags": np.array([True, False]), "wide": np.arange(6).reshape(2, 3).T}
    store.write_arrays(tmp_path / "a", arrays, {})
    read, _ = store.read_arrays(tmp_path / "a")
    assert all(np.array_equal(read[name], arrays[name]) for name in arrays)


def test_damaged_files_are_told_from_foreign_ones(tmp_path: Path) -> None:
    path = tmp_path / "t"
    with pytest.raises(GradDivError, match="there is no"):
        store.read_tensors(path)
    store.write_tensors(path, {"a": torch.zeros(100)}, {})
    whole = path.read_bytes()
    path.write_bytes(whole[:-7])
    with pytest.raises(GradDivError, match=f"damaged: it has {len(whole) - 7} bytes where {len(whole)} were expected"):
        store.read_tensors(path)
    for content in (b"", b"PK\3\4 a zip file of torch.save", whole[:20]):
        path.write_bytes(content)
        with pytest.raises(GradDivError, match="not a file that graddiv wrote"):
            store.read_tensors(path)


def test_a_log_is_cut_back_to_the_checkpoint(tmp_path: Path) -> None:
    path = tmp_path / "log"
    log = Log(path)
    log(epoch=1)
    size = log.size
    log(epoch=2)
    log.close()
    log = Log(path, size)
    assert log.size == size  # also before anything is written anew
    log(epoch=3)
    assert log.size == path.stat().st_size
    log.close()
    assert read_log(path) == [{"epoch": 1}, {"epoch": 3}]
    with path.open("ab") as file:
        file.write(b'{"epoch": 4, "lo')
    assert read_log(path) == [{"epoch": 1}, {"epoch": 3}]
    path.write_bytes(b"{}")
    with pytest.raises(GradDivError, match="has 2 bytes where the checkpoint knows of 26: it was cut by hand"):
        Log(path, 26)


def test_a_log_on_a_full_disk(tmp_path: Path) -> None:
    log = Log(tmp_path / "log")
    log(a=1)
    with room(20), pytest.raises(GradDivError, match=r"cannot write .*log: File too large"):
        log(text="x" * 100)
    log.close()
    assert read_log(tmp_path / "log") == [{"a": 1}]


def test_a_log_knows_no_nan(tmp_path: Path) -> None:
    log = Log(tmp_path / "log")
    with pytest.raises(ValueError, match="not JSON compliant"):
        log(loss=float("nan"))
    log.close()


def forked_holder(directory: Path) -> int:
    """A process that holds the lock of the directory."""
    child = os.fork()
    if child == 0:
        with store.locked(directory):
            (directory / "held").touch()
            (directory / ".half.1.tmp").touch()
            time.sleep(60)
        os._exit(0)
    while not (directory / "held").exists():
        time.sleep(0.01)
    return child


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of fork where threads were started before
def test_one_writer_and_the_lock_of_a_dead_one_is_free(tmp_path: Path) -> None:
    child = forked_holder(tmp_path)
    assert store.is_locked(tmp_path)
    refused = pytest.raises(GradDivError, match=rf"being written by process {child} on \S+: wait.*--out")
    with refused, store.locked(tmp_path):
        pass
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    assert not store.is_locked(tmp_path)
    with store.locked(tmp_path):
        assert store.is_locked(tmp_path)
        assert not (tmp_path / ".half.1.tmp").exists()
    assert not store.is_locked(tmp_path / "elsewhere")


def test_a_lock_that_is_a_link_leaves_what_it_leads_to(tmp_path: Path) -> None:
    (tmp_path / "mine").write_text("precious")
    (tmp_path / ".lock").symlink_to(tmp_path / "mine")
    with pytest.raises(GradDivError, match="cannot write into"), store.locked(tmp_path):
        pass
    assert (tmp_path / "mine").read_text() == "precious"


def test_a_part_with_a_writer_of_its_own_keeps_what_is_being_written(tmp_path: Path) -> None:
    for part in ("records", "checkpoints"):
        (tmp_path / part).mkdir()
        (tmp_path / part / ".half.1.tmp").touch()
    (tmp_path / "records" / ".lock").touch()
    with store.locked(tmp_path):
        assert [path.parent.name for path in tmp_path.rglob("*.tmp")] == ["records"]
    with store.locked(tmp_path / "records"):
        assert list(tmp_path.rglob("*.tmp")) == []


def test_who_asks_for_a_lock_does_not_keep_others_from_taking_it(tmp_path: Path) -> None:
    with store.locked(tmp_path):
        pass
    with (tmp_path / ".lock").open() as file:
        fcntl.flock(file, fcntl.LOCK_SH)  # as is_locked does
        assert not store.is_locked(tmp_path)
        timer = threading.Timer(0.02, fcntl.flock, (os.dup(file.fileno()), fcntl.LOCK_UN))
        timer.start()
        with store.locked(tmp_path):
            pass
        timer.join()


def test_other_settings_are_refused_by_name(tmp_path: Path) -> None:
    path = tmp_path / "settings.json"
    store.write_once_or_match(path, {"a": {"b": 1, "c": (1, 2)}, "d": 0.5})
    store.write_once_or_match(path, {"a": {"b": 1, "c": (1, 2)}, "d": 0.5})
    with pytest.raises(GradDivError, match=r"was made with a\.b = 1, now it is 2 \(and 1 more keys\): choose another"):
        store.write_once_or_match(path, {"a": {"b": 2, "c": (1, 2)}})
    path.write_text("{")
    with pytest.raises(GradDivError, match=r"cannot read .*settings\.json"):
        store.write_once_or_match(path, {})


@pytest.mark.slow
def test_a_damaged_npz_is_refused_by_name(tmp_path: Path) -> None:
    path, x = tmp_path / "xs.npz", np.arange(30, dtype=np.float32)
    np.savez_compressed(path, x=x, y=x)
    whole = path.read_bytes()
    assert store.read_npz(path).keys() == {"x", "y"}
    assert store.read_npz(path, "y").keys() == {"y"}
    with pytest.raises(GradDivError, match=r"xs\.npz lacks the array 'z'"):
        store.read_npz(path, "x", "z")
    flipped = (whole[:at] + bytes([whole[at] ^ 255]) + whole[at + 1 :] for at in range(len(whole)))
    read = []
    for content in (*(whole[:size] for size in range(len(whole))), *flipped):
        path.write_bytes(content)
        with suppress(GradDivError):
            read.append(store.read_npz(path))
    assert len(read) < 0.3 * len(whole), "only flipped dates and the like do not matter"
    assert all(np.array_equal(array, x) for found in read for array in found.values())
    np.save(tmp_path / "x.npy", x)
    with pytest.raises(GradDivError, match=r"x\.npy: it is no \.npz file, expected one that numpy\.savez wrote"):
        store.read_npz(tmp_path / "x.npy")
    np.savez(path, x=np.array([{}], dtype=object))
    with pytest.raises(GradDivError, match=r"cannot read .*xs\.npz as \.npz: Object arrays"):
        store.read_npz(path)
