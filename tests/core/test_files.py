"""Results are written whole or not at all: by the helper, and by whatever writes any."""

from __future__ import annotations

import errno
import importlib.util
import os
import sys

import pytest
from helpers.problems import largest_file
from helpers.programs import program

from gemv.core.files import replaced_file, whole, write_text

ON_A_FULL_DISK = pytest.mark.skipif(sys.platform == "win32", reason="limits are set another way")


def contents(folder):
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize("there", [True, False], ids=["over a file", "new"])
@pytest.mark.parametrize("error", [KeyboardInterrupt, ValueError, OSError])
def test_what_ends_half_way_leaves_everything_as_it_was(tmp_path, there, error):
    path = tmp_path / "out"
    if there:
        path.write_bytes(b"before")
    was = contents(tmp_path)
    with pytest.raises(error):
        with whole(path) as file:
            file.write(bytes(1 << 20))
            file.flush()
            assert not there or path.read_bytes() == b"before"
            raise error
    assert contents(tmp_path) == was
    write_text(path, "ä")
    assert contents(tmp_path) == {path: "ä".encode()}


def test_a_disk_that_fails_at_the_end_is_told(tmp_path, monkeypatch):
    """Some file systems tell only then that they are full."""
    path = tmp_path / "out"
    path.write_bytes(b"before")

    def full(descriptor):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left"):
        write_text(path, "after")
    assert contents(tmp_path) == {path: b"before"}


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no named pipes here")
def test_a_pipe_gets_everything_at_the_end(tmp_path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    assert replaced_file(pipe) is None
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    try:
        with pytest.raises(ValueError), whole(pipe) as file:
            file.write(b"half")
            raise ValueError
        write_text(pipe, "all")
        assert os.read(reader, 100) == b"all"
    finally:
        os.close(reader)
    assert pipe.is_fifo()


def test_what_may_not_be_written_is_told_before_the_work(tmp_path, monkeypatch):
    """Permissions bind no administrator, so what they say is replaced as well."""
    file = tmp_path / "file"
    file.write_bytes(b"before")
    allowed = os.access
    for refused, says in ((file, "permission denied$"), (tmp_path, "in the directory")):
        monkeypatch.setattr(os, "access", lambda p, mode, r=refused: p != r and allowed(p, mode))
        with pytest.raises(PermissionError, match=says):
            replaced_file(file)
    with pytest.raises(FileNotFoundError, match=r"there is no directory .*nowhere$"):
        replaced_file(tmp_path / "nowhere" / "file")
    with pytest.raises(IsADirectoryError, match="it is a directory"):
        replaced_file(tmp_path)


# Whatever writes results --------------------------------------------------------------------------


def grid(path):
    from gemv.measure.records import GridResults

    GridResults("A GPU", "cuda", {"torch": "9" * 9999}).store(path)


def calls(path):
    """``calls --json``; the other commands write by the same function."""
    measure_calls = program("measure.calls")

    with pytest.MonkeyPatch.context() as patch:
        table = program("measure.calls_records").CallResults("A GPU", {"torch": "9" * 9999})
        patch.setattr(measure_calls, "measure", lambda progress: table)
        assert program("command").main(["calls", "--json", str(path)]) == 2
    raise OSError(errno.EFBIG, "refused with status 2")


def picture(path):
    pytest.importorskip("matplotlib")
    from matplotlib.figure import Figure

    from gemv.measure.picture import save

    save(Figure(), path, dpi=200)


def point(path):
    script = vars(program("history.store"))
    raw = path.parent.parent / "raw"
    (raw / "results").mkdir(parents=True)
    (raw / "results" / "0-existing.json").write_text('{"results": {}}')
    facts = {"machine": path.parent.name, "python": "3.12", "torch": "9" * 9999}
    script["store"](raw, path.parent.parent, facts, "ab" * 20, 5000)


def campaign(path):
    program("fit.store").Campaign({"gpu": "9" * 9999}).save(path)


WRITERS = {
    "grid.json": (grid, '{"rows": []}'),
    "calls.json": (calls, "{}"),
    "picture.png": (picture, "a picture"),
    "picture.svg": (picture, "a picture"),
    "picture.pdf": (picture, "a picture"),
    "abababababab-existing-py3.12.json": (point, '{"params": {}, "versions": {}, "results": {}}'),
    "campaign.json": (campaign, '{"about": {}}'),
}


@ON_A_FULL_DISK
@pytest.mark.parametrize("name", WRITERS)
def test_a_full_disk_leaves_the_results_there_were(tmp_path, capsys, name):
    write, before = WRITERS[name]
    folder = tmp_path / "results"
    folder.mkdir()
    (folder / name).write_text(before)
    # capsys: what is printed goes into memory, not into a file of the test run
    with pytest.raises(OSError) as told, largest_file(1000):
        write(folder / name)
    assert told.value.errno == errno.EFBIG
    assert contents(folder) == {folder / name: before.encode()}


@pytest.mark.skipif(
    importlib.util.find_spec("matplotlib") is None, reason="needs matplotlib, the extra 'plot'"
)
@pytest.mark.parametrize(
    ("name", "begins"), [("a.png", b"\x89PNG"), ("a.SVG", b"<?xml"), ("a.pdf", b"%PDF")]
)
def test_the_name_says_what_is_drawn(tmp_path, name, begins):
    picture(tmp_path / name)
    assert (tmp_path / name).read_bytes().startswith(begins)
