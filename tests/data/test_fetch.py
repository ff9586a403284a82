import hashlib
import io
import socket
import tarfile
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from graddiv.data import SOURCES
from graddiv.data import fetch as fetching
from graddiv.data.dataset import Download, Source
from graddiv.data.fetch import fetch, retrieve, unpack
from graddiv.errors import GradDivError
from tests.data.loopback import Site, serve

BODY = bytes(range(256)) * 40
MD5 = hashlib.md5(BODY).hexdigest()


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fetching, "PAUSE", 0.0)
    monkeypatch.setattr(fetching, "TIMEOUT", 10.0)
    monkeypatch.setattr(fetching, "CHUNK", 1000)


@pytest.fixture
def site() -> Iterator[Site]:
    with serve(Site({"/file": BODY})) as site:
        yield site


def silent(done: float, total: float, label: str) -> None:
    pass


def test_progress_reaches_the_end(site: Site, tmp_path: Path) -> None:
    seen: list[tuple[float, float, str]] = []
    retrieve(f"{site.url}/file", tmp_path / "file", MD5, len(BODY), lambda *told: seen.append(told))
    assert (tmp_path / "file").read_bytes() == BODY
    assert [here for here, *_ in seen] == [*range(1000, 10_001, 1000), 10_240]
    assert {(total, label) for _, total, label in seen} == {(10_240, "file")}
    assert [path.name for path in tmp_path.iterdir() if path.is_file()] == ["file"]


def test_cut_connection_is_resumed(site: Site, tmp_path: Path) -> None:
    site.cuts = [3000, 0, 500]
    retrieve(f"{site.url}/file", tmp_path / "file", MD5, len(BODY), silent)
    assert (tmp_path / "file").read_bytes() == BODY
    assert site.ranges == [None, "bytes=3000-", "bytes=3000-", "bytes=3500-"]


def test_a_later_run_resumes(site: Site, tmp_path: Path) -> None:
    (tmp_path / "file.part").write_bytes(BODY[:7000])
    retrieve(f"{site.url}/file", tmp_path / "file", MD5, len(BODY), silent)
    assert site.ranges == ["bytes=7000-"]
    assert (tmp_path / "file").read_bytes() == BODY


def test_complete_part_is_only_checked(site: Site, tmp_path: Path) -> None:
    (tmp_path / "file.part").write_bytes(BODY)
    retrieve(f"{site.url}/file", tmp_path / "file", MD5, len(BODY), silent)
    assert (tmp_path / "file").read_bytes() == BODY


def test_server_that_ignores_range(site: Site, tmp_path: Path) -> None:
    site.ignores_range = True
    site.cuts = [3000, 2000, 6000]
    retrieve(f"{site.url}/file", tmp_path / "file", MD5, len(BODY), silent)
    assert (tmp_path / "file").read_bytes() == BODY
    assert len(site.ranges) == 4


@pytest.mark.parametrize("begun", [0, 100])
def test_wrong_bytes_are_deleted(site: Site, tmp_path: Path, begun: int) -> None:
    wrong = BODY[:-1] + b"!"
    site.content["/file"] = wrong
    (tmp_path / "file.part").write_bytes(BODY[:begun])
    found = hashlib.md5(wrong).hexdigest()
    with pytest.raises(
        GradDivError, match=f"/file gave 10240 bytes with md5 {found}, expected 10240 bytes with md5 {MD5}; .* deleted"
    ):
        retrieve(f"{site.url}/file", tmp_path / "file", MD5, len(BODY), silent)
    assert not (tmp_path / "file").exists()
    assert not (tmp_path / "file.part").exists()


def test_passing_failure_is_retried(site: Site, tmp_path: Path) -> None:
    site.statuses = [503, 500]
    retrieve(f"{site.url}/file", tmp_path / "file", MD5, len(BODY), silent)
    assert (tmp_path / "file").read_bytes() == BODY


def test_lasting_failure_gives_up_and_keeps_what_is_here(site: Site, tmp_path: Path) -> None:
    site.cuts = [3000] + [0] * 50
    with pytest.raises(GradDivError, match=r"cut after 3000 of 10240 bytes\); 3000 bytes are kept in .*file\.part"):
        retrieve(f"{site.url}/file", tmp_path / "file", MD5, len(BODY), silent)
    assert len(site.ranges) == fetching.ATTEMPTS
    assert (tmp_path / "file.part").read_bytes() == BODY[:3000]


def test_missing_page_is_not_asked_for_again(site: Site, tmp_path: Path) -> None:
    with pytest.raises(GradDivError, match=r"/gone could not be downloaded \(HTTP 404 Not Found\)"):
        retrieve(f"{site.url}/gone", tmp_path / "file", MD5, len(BODY), silent)
    assert len(site.ranges) == 1


def test_no_server(tmp_path: Path) -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))  # held but not listening: connections are refused
        url = f"http://127.0.0.1:{unused.getsockname()[1]}/file"
        with pytest.raises(GradDivError, match=r"/file could not be downloaded \(.*refused"):
            retrieve(url, tmp_path / "file", MD5, len(BODY), silent)


def archive(*members: tuple[str, bytes | str]) -> bytes:
    """A tar.gz; text stands for a symbolic link."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as tar:
        for name, content in members:
            info = tarfile.TarInfo(name)
            if isinstance(content, str):
                info.type, info.linkname = tarfile.SYMTYPE, content
                tar.addfile(info)
            else:
                info.size = len(content)
                tar.addfile(info, io.BytesIO(content))
    return buffer.getvalue()


def tree(root: Path) -> dict[str, bytes]:
    return {str(path.relative_to(root)): path.read_bytes() for path in root.rglob("*") if path.is_file()}


def test_only_the_expected_members_are_unpacked(tmp_path: Path) -> None:
    path, root = tmp_path / "a.tar.gz", tmp_path / "inside"
    content = archive(
        ("../escaped", b"1"), (f"{tmp_path}/absolute", b"2"), ("set/other", b"3"), ("link", "/"), ("set/wanted", b"4")
    )
    path.write_bytes(content)
    unpack(path, ["set/wanted"], root)
    assert tree(tmp_path) == {"a.tar.gz": content, "inside/set/wanted": b"4"}


@pytest.mark.parametrize("members", [(), (("set/wanted", "/etc/passwd"),), (("set/../set/wanted", b"x"),)])
def test_archive_without_the_member(tmp_path: Path, members: tuple[tuple[str, bytes | str], ...]) -> None:
    path = tmp_path / "a.tar.gz"
    path.write_bytes(archive(*members))
    with pytest.raises(GradDivError, match=r"a\.tar\.gz lacks set/wanted, expected 1 files"):
        unpack(path, ["set/wanted"], tmp_path / "root")
    assert not (tmp_path / "root").exists()


@pytest.mark.parametrize("content", [b"", b"not a tar", archive(("set/wanted", BODY))[:-60]])
def test_damaged_archive(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "a.tar.gz").write_bytes(content)
    with pytest.raises(GradDivError, match=r"a\.tar\.gz cannot be unpacked \(.*expected a tar\.gz archive"):
        unpack(tmp_path / "a.tar.gz", ["set/wanted"], tmp_path / "root")
    assert not (tmp_path / "root" / "set" / "wanted").exists()


@pytest.fixture
def toy(site: Site) -> Callable[[], Source]:
    """A source of one plain file and one archive of two files, served by `site`."""
    site.content["/b.tar.gz"] = packed = archive(("toy/b", b"bee"), ("toy/unlabelled", BODY), ("toy/c", b"sea"))
    md5 = {path: hashlib.md5(content).hexdigest() for path, content in [("toy/b", b"bee"), ("toy/c", b"sea")]}
    return lambda: replace(
        SOURCES["cifar10"],
        files={"train": ("toy/a", *md5)},
        md5s={"toy/a": MD5, **md5},
        downloads=(
            Download(f"{site.url}/file", MD5, "toy/a", len(BODY)),
            Download(f"{site.url}/b.tar.gz", hashlib.md5(packed).hexdigest(), "b.tar.gz", len(packed), tuple(md5)),
        ),
    )


def test_fetch_gets_what_is_lacking(site: Site, tmp_path: Path, toy: Callable[[], Source]) -> None:
    root = tmp_path / "new" / "root"
    fetch(toy(), root, silent)
    assert tree(root) == {"toy/a": BODY, "toy/b": b"bee", "toy/c": b"sea"}
    fetch(toy(), root, silent)
    assert len(site.ranges) == 2  # nothing was lacking
    (root / "toy" / "a").write_bytes(b"damaged")
    (root / "toy" / "c").unlink()
    fetch(toy(), root, silent)
    assert tree(root) == {"toy/a": BODY, "toy/b": b"bee", "toy/c": b"sea"}


def test_archive_that_is_there_is_used_and_kept(site: Site, tmp_path: Path, toy: Callable[[], Source]) -> None:
    (tmp_path / "root").mkdir()
    (tmp_path / "root" / "b.tar.gz").write_bytes(site.content.pop("/b.tar.gz"))
    fetch(toy(), tmp_path / "root", silent)
    assert set(tree(tmp_path / "root")) == {"toy/a", "b.tar.gz", "toy/b", "toy/c"}


def test_root_that_cannot_be_written(tmp_path: Path, toy: Callable[[], Source]) -> None:
    (tmp_path / "root").write_text("a file in the way")
    with pytest.raises(GradDivError, match=r"data root \S+root cannot be written \(.+\), expected a folder"):
        fetch(toy(), tmp_path / "root", silent)


def test_official_downloads_cover_the_official_files() -> None:
    for name in ("mnist", "cifar10", "stl10"):
        source = SOURCES[name]
        provided = {path for download in source.downloads for path in download.members or [download.path]}
        wanted = {file for files in source.files.values() for file in files}
        assert wanted == {path.removesuffix(".gz") for path in provided}
        assert provided <= set(source.md5s)


def test_an_answer_without_end_is_broken_off(site: Site, tmp_path: Path) -> None:
    site.content["/file"] = BODY * 100
    with pytest.raises(GradDivError, match=r"gave 1\d{4} bytes or more .*, expected 10240 bytes with md5 .* deleted"):
        retrieve(f"{site.url}/file", tmp_path / "file", MD5, len(BODY), silent)
    assert not list(tmp_path.glob("file*"))


def test_a_file_that_is_too_short_is_refused(site: Site, tmp_path: Path) -> None:
    site.content["/file"] = BODY[:100]
    with pytest.raises(GradDivError, match=r"gave 100 bytes with md5 .*, expected 10240 bytes with md5 .* deleted"):
        retrieve(f"{site.url}/file", tmp_path / "file", MD5, len(BODY), silent)
    assert not list(tmp_path.glob("file*"))


def test_every_download_is_encrypted_and_has_a_size() -> None:
    downloads = [download for source in SOURCES.values() for download in source.downloads]
    assert downloads
    assert all(download.url.startswith("https://") and download.size > 0 for download in downloads)
