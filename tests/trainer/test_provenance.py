"""Provenance: the commit and diff of the running source, not of a repository around it."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
import torch

from trainer import provenance as module
from trainer.provenance import provenance


def git(folder: Path, *arguments: str) -> str:
    identity = ("-c", "user.name=t", "-c", "user.email=t@localhost")
    command = ["git", "-C", str(folder), *identity, *arguments]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """A repository with a folder of source, committed."""
    folder = tmp_path / "source"
    folder.mkdir()
    (folder / "a.py").write_text("a = 1\n")
    git(tmp_path, "init", "--quiet")
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "--quiet", "--message", "first")
    return folder


def test_commit_and_diff(source: Path) -> None:
    commit = git(source, "rev-parse", "HEAD").strip()
    clean = provenance(source)
    assert (clean.git_commit, clean.git_diff, clean.git_diff_truncated) == (commit, "", False)
    (source / "a.py").write_text("a = 2\n")
    dirty = provenance(source)
    assert dirty.git_commit == commit
    assert "-a = 1\n+a = 2" in str(dirty.git_diff)


def test_a_large_diff_is_cut(source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "DIFF_LIMIT_BYTES", 50)
    (source / "a.py").write_text("a = 2\n" * 100)
    cut = provenance(source)
    assert cut.git_diff_truncated
    assert len(str(cut.git_diff)) == 50


def test_an_installed_package_is_not_part_of_the_repository_around_it(source: Path) -> None:
    installed = source.parent / "site-packages"
    installed.mkdir()
    (installed / "a.py").write_text("")
    found = provenance(installed)
    assert (found.git_commit, found.git_diff) == (None, None)


def test_software_and_machine(tmp_path: Path) -> None:
    found = provenance(tmp_path)  # no repository at all
    assert found.git_commit is None
    assert found.torch == torch.__version__
    assert found.packages["pydantic"]
    assert found.cpu_count >= 1
    assert len(found.gpus) == torch.cuda.device_count()
