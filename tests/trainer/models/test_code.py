"""The digest of a custom model's code: what changes it, what does not, and its bounds."""

from __future__ import annotations

from pathlib import Path

import pytest

from trainer.errors import DataError, LaunchError
from trainer.models import code
from trainer.models.code import code_digest
from trainyard.spec.job import JobSpec, parse_job_spec

SPEC = parse_job_spec({"model": {"factory": "net:build", "code": "models:mine"}})


@pytest.fixture
def roots(tmp_path: Path) -> dict[str, str]:
    folder = tmp_path / "root" / "mine"
    (folder / "layers").mkdir(parents=True)
    (folder / "net.py").write_text("def build(): ...\n")
    (folder / "layers" / "block.py").write_text("WIDTH = 8\n")
    return {"models": str(tmp_path / "root")}


def folder_of(roots: dict[str, str]) -> Path:
    return Path(roots["models"]) / "mine"


def test_without_a_folder_of_code_there_is_none(roots: dict[str, str]) -> None:
    assert code_digest(JobSpec(), roots) is None
    assert code_digest(parse_job_spec({"model": {"factory": "net:build"}}), roots) is None


def test_every_file_counts_by_name_and_content(roots: dict[str, str]) -> None:
    folder = folder_of(roots)
    found = [code_digest(SPEC, roots)]
    (folder / "layers" / "block.py").write_text("WIDTH = 9\n")
    found.append(code_digest(SPEC, roots))
    (folder / "layers" / "block.py").rename(folder / "layers" / "other.py")
    found.append(code_digest(SPEC, roots))
    (folder / "table.json").write_text("{}")
    found.append(code_digest(SPEC, roots))
    (folder / "net.py").write_text((folder / "net.py").read_text() + "{}")
    (folder / "table.json").unlink()
    found.append(code_digest(SPEC, roots))
    assert None not in found
    assert len(set(found)) == 5


def test_what_an_import_writes_and_hidden_names_do_not_count(roots: dict[str, str]) -> None:
    folder, before = folder_of(roots), code_digest(SPEC, roots)
    for name in ("__pycache__/net.cpython-312.pyc", "layers/old.pyc", ".git/HEAD", ".swp"):
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text("changed")
    (folder / "empty").mkdir()
    (folder / "net.py").touch()
    assert code_digest(SPEC, roots) == before


def test_links_count_as_what_they_lead_to(roots: dict[str, str]) -> None:
    folder = folder_of(roots)
    shared = folder.parent / "shared"
    shared.mkdir()
    (shared / "norm.py").write_text("EPS = 1\n")
    (folder / "shared").symlink_to(shared)
    before = code_digest(SPEC, roots)
    (shared / "norm.py").write_text("EPS = 2\n")
    assert code_digest(SPEC, roots) != before
    (folder / "around").symlink_to(folder)
    with pytest.raises(DataError, match="is a symbolic link to a folder around it"):
        code_digest(SPEC, roots)


def test_a_link_out_of_the_root_is_refused(roots: dict[str, str], tmp_path: Path) -> None:
    (tmp_path / "elsewhere.py").write_text("x = 1\n")
    (folder_of(roots) / "far.py").symlink_to(tmp_path / "elsewhere.py")
    with pytest.raises(DataError, match=r"model\.code='models:mine'.*outside the root"):
        code_digest(SPEC, roots)


@pytest.mark.parametrize("bound", ["MAX_FILES", "MAX_BYTES"])
def test_more_than_code_is_refused(
    roots: dict[str, str], monkeypatch: pytest.MonkeyPatch, bound: str
) -> None:
    limit = {"MAX_FILES": 2, "MAX_BYTES": 27}[bound]  # exactly what there is
    monkeypatch.setattr(code, bound, limit)
    code_digest(SPEC, roots)
    monkeypatch.setattr(code, bound, limit - 1)
    with pytest.raises(LaunchError, match=r"model\.code='models:mine'.*legal: a folder"):
        code_digest(SPEC, roots)
