"""Code of spec files becomes a pack: the same bytes for the same files, and no secrets."""

from __future__ import annotations

import io
import os
import subprocess
import tarfile
import time
from pathlib import Path
from typing import Any

import pytest

from trainyard.client import packing
from trainyard.client.errors import UsageError
from trainyard.client.packing import Code, code_of


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with a program."""
    path = tmp_path / "mine"
    path.mkdir()
    write(path, "train.py", "print(1)")
    write(path, "inner/part.py", "x = 1")
    return path


@pytest.fixture
def repository(folder: Path) -> Path:
    """The folder as a repository with one commit."""
    git(folder, "init", "-q")
    git(folder, "add", ".")
    commit(folder)
    return folder


def write(folder: Path, name: str, text: str) -> Path:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def git(folder: Path, *words: str) -> str:
    done = subprocess.run(
        ["git", "-c", "user.name=a", "-c", "user.email=a@b.example", *words],
        cwd=folder,
        check=True,
        capture_output=True,
        text=True,
    )
    return done.stdout.strip()


def commit(folder: Path) -> None:
    git(folder, "commit", "-q", "-m", "all")


def pack(folder: Path, **code: Any) -> Code:
    made = code_of(document(**{"local": ".", **code}), folder=folder)
    assert made is not None
    return made


def document(**code: Any) -> dict[str, Any]:
    return {"name": "tiny", "program": {"command": ["train.py"], "code": code}}


def names(code: Code) -> list[str]:
    with tarfile.open(fileobj=io.BytesIO(code.archive)) as tar:
        return tar.getnames()


def test_equal_files_give_equal_bytes(folder: Path, tmp_path: Path) -> None:
    first = pack(folder)
    other = tmp_path / "other"
    write(other, "train.py", "print(1)")
    write(other, "inner/part.py", "x = 1")
    for path in other.rglob("*"):
        os.utime(path, (time.time() - 10**6,) * 2)
    (other / "train.py").chmod(0o600)
    assert pack(other).archive == first.archive
    assert names(first) == ["inner/part.py", "train.py"]
    (other / "train.py").chmod(0o700)  # a program that can be started is another one
    assert pack(other).archive != first.archive


def test_git_decides_what_is_ignored_and_the_commit_becomes_a_tag(repository: Path) -> None:
    clean = pack(repository)
    head = git(repository, "rev-parse", "HEAD")
    assert (clean.commit, clean.dirty, clean.changes) == (head, False, ())
    write(repository, ".gitignore", "data/\n*.log\n!kept.log\n")
    write(repository, "data/large.bin", "x")
    write(repository, "a.log", "x")
    write(repository, "kept.log", "x")
    write(repository, "inner/part.py", "x = 2")
    (repository / "train.py").unlink()
    made = pack(repository)
    assert names(made) == [".gitignore", "inner/part.py", "kept.log"]
    assert made.dirty
    assert {"-x = 1", "+x = 2", "Not in the commit: kept.log"} <= set(made.changes)
    spec = made.in_place({**document(), "tags": ["mine"]}, pack="sha256:" + "0" * 64)
    assert spec["program"]["code"] == {"pack": "sha256:" + "0" * 64}
    assert spec["tags"] == ["mine", f"commit-{head[:12]}-dirty"]
    assert "inner/part.py" not in names(pack(repository, local="inner"))
    assert names(pack(repository, local="inner")) == ["part.py"]


def test_a_commit_of_a_repository_is_packed_without_what_came_later(
    repository: Path, tmp_path: Path
) -> None:
    head = git(repository, "rev-parse", "HEAD")
    write(repository, "later.py", "x")
    git(repository, "add", ".")
    commit(repository)
    made = code_of(document(git=str(repository), commit=head), folder=tmp_path)
    assert made is not None
    assert names(made) == ["inner/part.py", "train.py"]
    assert (made.commit, made.dirty) == (head, False)
    with pytest.raises(UsageError, match=r"program\.code\.git"):
        code_of(document(git=str(repository), commit="0" * 40), folder=tmp_path)


def test_a_url_runs_no_command(tmp_path: Path) -> None:
    mark = tmp_path / "ran"
    for url in (f"ext::sh -c 'touch {mark}'", f"--upload-pack=touch {mark}"):
        with pytest.raises(UsageError, match=r"program\.code\.git"):
            code_of(document(git=url, commit="0" * 40), folder=tmp_path)
    assert not mark.exists()


@pytest.mark.parametrize(
    "name", [".env", "conf/.env.local", "a.pem", "B.PEM", "id_rsa", "tls.key", ".netrc", ".aws/x"]
)
def test_what_may_be_secret_is_refused_unless_it_is_named(folder: Path, name: str) -> None:
    write(folder, name, "secret")
    with pytest.raises(UsageError, match="may hold secrets") as refusal:
        pack(folder)
    assert name in str(refusal.value)
    assert "program.code.include" in refusal.value.remedy
    assert name in names(pack(folder, include=[name]))


def test_what_git_ignores_is_packed_when_it_is_named(repository: Path) -> None:
    write(repository, ".gitignore", "made/\n")
    write(repository, "made/vocabulary.txt", "x")
    assert "made/vocabulary.txt" in names(pack(repository, include=["made"]))


def test_links_that_leave_are_refused_and_others_kept(folder: Path) -> None:
    (folder / "inner" / "up.py").symlink_to("../train.py")
    with tarfile.open(fileobj=io.BytesIO(pack(folder).archive)) as tar:
        assert tar.getmember("inner/up.py").linkname == "../train.py"
    (folder / "out").symlink_to("/etc/passwd")
    with pytest.raises(UsageError, match="is a link to '/etc/passwd'"):
        pack(folder)


def test_too_much_is_refused_with_the_largest_files(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(packing, "MAX_PACK_BYTES", 10_000)
    (folder / "weights.bin").write_bytes(os.urandom(20_000))
    with pytest.raises(UsageError, match=r"Largest: weights.bin \(20,000 bytes\), train.py"):
        pack(folder)
    monkeypatch.setattr(packing, "MAX_UNPACKED_BYTES", 15_000)
    with pytest.raises(UsageError, match=r"before compression\. Largest: weights\.bin"):
        pack(folder)


@pytest.mark.parametrize(
    ("code", "said"),
    [
        ({"local": "absent"}, "is not a folder"),
        ({"local": ".", "folder": "data:x"}, "program.code has folder, local"),
        ({"git": "x"}, "legal: local, or git with commit"),
        ({"git": "x", "commit": "main"}, "the whole hash"),
        ({"local": ".", "include": "x"}, "write a list"),
        ({"local": ".", "include": ["../x"]}, "not a file or folder"),
        ({"local": ".", "include": ["absent"]}, "not a file or folder"),
        ({"include": ["train.py"]}, "program.code has include"),
    ],
)
def test_what_cannot_be_packed_is_named(folder: Path, code: dict[str, Any], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        code_of(document(**code), folder=folder)


@pytest.mark.parametrize("given", [{}, {"program": {}}, {"program": {"code": {"folder": "a:b"}}}])
def test_a_spec_without_such_code_stays_as_it_is(given: dict[str, Any], tmp_path: Path) -> None:
    assert code_of(given, folder=tmp_path) is None


def test_a_damaged_repository_is_no_plain_folder(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(folder, ".git", "gitdir: nowhere")
    with pytest.raises(UsageError, match="not a git repository"):
        pack(folder)


@pytest.mark.parametrize(
    ("program", "words"),
    [
        ({"command": ["train.py"]}, None),
        ({"command": ["part.py"], "working_dir": "inner"}, None),
        ({"command": ["python", "absent.py"]}, None),
        ({"command": ["/srv/tool.py"]}, None),
        ({"command": "train.py"}, None),
        ({"command": ["trian.py"]}, "'trian.py': the pack has no trian.py; did you mean train.py?"),
        ({"command": ["part.py"]}, "the pack has no part.py; did you mean inner/part.py?"),
        ({"command": ["other.py"], "working_dir": "src"}, "the pack has no src/other.py"),
    ],
)
def test_a_script_that_the_pack_lacks_is_named(
    folder: Path, program: dict[str, Any], words: str | None
) -> None:
    found = pack(folder).missing_script({"program": program})
    if words is None:
        assert found is None
    else:
        assert found is not None
        assert found.endswith(words)


def test_the_remedy_of_a_folder_without_git_begins_with_one(folder: Path) -> None:
    write(folder, ".env", "KEY=x")
    with pytest.raises(UsageError) as plain:
        pack(folder)
    git(folder, "init", "-q")
    with pytest.raises(UsageError) as tracked:
        pack(folder)
    assert plain.value.remedy.startswith("Run `git init` and add them to .gitignore, move")
    assert tracked.value.remedy.startswith("Add them to .gitignore, move")
