"""The files of an input, and refused places."""

from __future__ import annotations

import os
import shutil
import sysconfig
from pathlib import Path

import pytest

from tests.trainer.data.helpers import text_spec
from trainer.data.files.corpus import Corpus, InputFile
from trainer.data.files.sources import open_source
from trainer.data.survey import check_input
from trainer.errors import DataError
from trainyard.spec.job import JobSpec, parse_job_spec


@pytest.fixture
def root(tmp_path: Path) -> Path:
    root = tmp_path / "data"
    root.mkdir()
    return root


def corpus_of(root: Path, place: str = "data:.") -> Corpus:
    return open_source(text_spec(place).data, {"data": str(root)}).corpus


def content(corpus: Corpus, file: InputFile) -> bytes:
    with corpus.open(file) as opened:
        return opened.read()


def names(corpus: Corpus) -> list[str]:
    return [file.name for file in corpus.files()]


def refusal(root: Path, place: str = "data:.", spec: JobSpec | None = None) -> DataError:
    with pytest.raises(DataError) as caught:
        check_input(spec or text_spec(place), {"data": str(root)})
    return caught.value


# ---- what an input is made of -------------------------------------------------------------------


def test_files_come_in_the_order_of_their_names_bytes(root: Path) -> None:
    for name in ("b.txt", "a/z.txt", "a/Z.md", "B", "ä.txt", "a.txt"):
        (root / name).parent.mkdir(exist_ok=True)
        (root / name).write_text(name)
    assert names(corpus_of(root)) == ["B", "a/Z.md", "a/z.txt", "a.txt", "b.txt", "ä.txt"]


def test_hidden_and_empty_files_are_left_out(root: Path) -> None:
    (root / ".git").mkdir()
    for name in (".git/config", ".hidden", "text"):
        (root / name).write_text("content")
    (root / "empty").touch()
    assert names(corpus_of(root)) == ["text"]


def test_a_single_file_is_an_input_also_when_hidden(root: Path) -> None:
    (root / ".one").write_text("content")
    files = list(corpus_of(root, "data:.one").files())
    assert [file.path for file in files] == [root / ".one"]


def test_links_beneath_the_root_are_followed(root: Path) -> None:
    (root / "real").mkdir()
    (root / "real/text").write_text("content")
    (root / "linked").symlink_to("real")
    (root / "file").symlink_to(root / "real/text")
    assert names(corpus_of(root)) == ["file", "linked/text", "real/text"]
    assert names(corpus_of(root, "data:linked")) == ["text"]


def test_the_root_itself_may_be_a_link(root: Path, tmp_path: Path) -> None:
    (root / "text").write_text("some content")
    (tmp_path / "link").symlink_to(root)
    check_input(text_spec("data:text"), {"data": str(tmp_path / "link")})


def test_the_standard_library_is_a_corpus() -> None:
    spec = parse_job_spec({"data": {"source": "corpus"}})
    check_input(spec, {})
    corpus = open_source(spec.data, {}).corpus
    found = {d.name: d for d in corpus.files()}
    folder = Path(sysconfig.get_paths()["stdlib"])
    assert content(corpus, found["json/decoder.py"]) == (folder / "json/decoder.py").read_bytes()
    assert sum(d.size for d in found.values()) > 5_000_000
    assert all(name.endswith(".py") for name in found)
    parts = {part for name in found for part in Path(name).parts}
    assert not parts & {"site-packages", "test", "tests", "__pycache__", "sitecustomize.py"}
    assert not any("_sysconfigdata" in name for name in found)


# ---- places that are refused --------------------------------------------------------------------


def test_a_missing_place_is_refused(root: Path) -> None:
    error = refusal(root, "data:books/one.txt")
    assert error.path == str(root / "books/one.txt")
    assert "data.path='data:books/one.txt'" in str(error)
    assert "No such file or directory" in str(error)


def test_an_unknown_root_is_refused(root: Path) -> None:
    error = refusal(root, "models:one.txt")
    assert "root 'models' is not defined on this node (defined: data)" in str(error)


def test_a_missing_root_is_refused(tmp_path: Path) -> None:
    assert refusal(tmp_path / "gone", "data:one.txt").path == str(tmp_path / "gone")


@pytest.mark.parametrize("place", ["data:link", "data:folder/one.txt", "data:chain"])
def test_a_place_outside_its_root_through_a_link_is_refused(root: Path, place: str) -> None:
    outside = root.with_name("outside")
    outside.mkdir()
    (outside / "one.txt").write_text("a long enough secret")
    (root / "link").symlink_to(outside / "one.txt")
    (root / "folder").symlink_to("../outside")
    (root / "chain").symlink_to("link")
    error = refusal(root, place)
    assert error.path == str(root / place.removeprefix("data:"))
    assert f"outside the root {root}" in str(error)


def test_a_root_whose_name_begins_alike_is_outside(root: Path) -> None:
    (root.with_name("data-secret")).mkdir()
    (root.with_name("data-secret") / "text").write_text("a long enough secret")
    (root / "link").symlink_to("../data-secret/text")
    assert "outside the root" in str(refusal(root, "data:link"))


@pytest.mark.parametrize(
    ("target", "message"),
    [
        ("/etc/hostname", "outside the root"),
        ("../../..", "outside the root"),
        ("gone", "leads nowhere (No such file or directory)"),
        ("link", "leads nowhere"),
        (".", "is a symbolic link to a folder around it"),
    ],
)
def test_a_bad_link_among_good_files_is_refused(root: Path, target: str, message: str) -> None:
    (root / "deep").mkdir()
    (root / "deep/text").write_text("long enough to be trained on")
    (root / "deep/link").symlink_to(target)
    error = refusal(root)
    assert error.path == str(root / "deep/link")
    assert message in str(error)


def test_a_loop_through_two_folders_is_refused(root: Path) -> None:
    for name, target in (("a", "b"), ("b", "a")):
        (root / name).mkdir()
        (root / name / "link").symlink_to(f"../{target}")
    assert "is a symbolic link to a folder around it" in str(refusal(root))


@pytest.mark.parametrize("place", ["data:.", "data:pipe"])
def test_a_pipe_is_refused_without_waiting_for_it(root: Path, place: str) -> None:
    os.mkfifo(root / "pipe")
    error = refusal(root, place)
    assert error.path == str(root / "pipe")
    assert "is neither a file nor a folder" in str(error)


@pytest.mark.parametrize("files", [(), ("empty",), (".hidden",)])
def test_an_empty_corpus_is_refused(root: Path, files: tuple[str, ...]) -> None:
    for name in files:
        (root / name).write_text("" if name == "empty" else "long enough to be trained on")
    error = refusal(root)
    assert error.path == str(root)
    assert "is empty: no file with content" in str(error)


def test_a_corpus_of_one_token_too_few_is_refused_with_the_counts(root: Path) -> None:
    (root / "a").write_text("123")
    (root / "b").write_text("12")  # with BOS and EOS each: nine tokens
    check_input(text_spec(seq_len=8), {"data": str(root)})
    error = refusal(root, spec=text_spec(seq_len=9))
    assert "holds 9 tokens in 2 documents" in str(error)
    assert "training.seq_len=9 needs 10" in str(error)


def test_max_tokens_that_leave_too_few_are_named(root: Path) -> None:
    (root / "a").write_text("a" * 98)
    error = refusal(root, spec=text_spec(seq_len=20, max_tokens=20))
    assert "holds 100 tokens in 1 documents, of which data.max_tokens=20 leaves 20" in str(error)


def test_a_name_that_is_no_utf8_is_shown_in_utf8(root: Path) -> None:
    (root / os.fsdecode(b"bad-\xff")).symlink_to("gone")
    error = refusal(root)
    assert error.path == f"{root}/bad-\\xff"
    str(error).encode()


def test_a_folder_that_cannot_be_listed_is_refused(root: Path) -> None:
    shutil.rmtree(root)
    root.write_text("a file in place of the root")
    error = refusal(root, "data:one.txt")
    assert "Not a directory" in str(error)


# ---- files that change --------------------------------------------------------------------------


@pytest.mark.parametrize("written", ["longer than before", "other", "short"])
def test_a_file_that_was_written_to_since_is_refused(root: Path, written: str) -> None:
    (root / "text").write_text("first")
    corpus = corpus_of(root)
    [file] = corpus.files()
    # Only the kernel sets the change time; the modification time can be set back.
    while (root / "text").stat().st_ctime_ns == file.stamp[2]:
        (root / "text").write_text(written)
    os.utime(root / "text", ns=(file.stamp[1], file.stamp[1]))
    with pytest.raises(DataError, match="was written to while it was read"):
        content(corpus, file)


def test_a_folder_exchanged_for_a_link_that_leads_out_is_noticed(root: Path) -> None:
    (root / "folder").mkdir()
    (root / "folder/text").write_text("public")
    outside = root.with_name("outside")
    outside.mkdir()
    (outside / "text").write_text("secret")
    corpus = corpus_of(root)
    [file] = corpus.files()
    (root / "folder").rename(root / "old")
    (root / "folder").symlink_to(outside)
    with pytest.raises(DataError, match=r"now leads to .*outside/text"):
        content(corpus, file)


def test_a_file_that_went_is_refused(root: Path) -> None:
    (root / "text").write_text("content")
    corpus = corpus_of(root)
    [file] = corpus.files()
    (root / "text").unlink()
    with pytest.raises(DataError, match="cannot be read: No such file"):
        content(corpus, file)


def test_the_identity_of_a_file_changes_with_name_and_stamp(root: Path) -> None:
    (root / "text").write_text("content")
    before = next(corpus_of(root).files()).identity
    (root / "text").rename(root / "text2")
    renamed = next(corpus_of(root).files()).identity
    os.utime(root / "text2", ns=(1, 1))
    touched = next(corpus_of(root).files()).identity
    assert len({before, renamed, touched}) == 3
