"""How texts and messages install Trainyard: from a folder of wheels, or from its checkout.

On the package index the name `trainyard` belongs to another project, and our own names could be
taken by anybody (docs/adr/0015): no command leads to an index for one of the three.
"""

import json
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import trainyard
from tests.test_house_rules import ROOT, source_files

COMMAND = re.compile(
    r"\b(?:pip3?|pipx|uvx?|poetry|conda)\b[^`;&|\n]*\b(?:install|add|download|wheel|run)\b([^`;&|\n]*)"
)
# After `trainyard` a blank may begin the name of something else, as in "trainyard worker".
PROSE = re.compile(r"\binstall\w*[ :]+`?trainyard\b(?![/ .-])[^\n]*", re.IGNORECASE)
# Within a Python literal that goes on in the next line, and in a shell command that does.
BROKEN_LINE = re.compile(r"\"\s*\n\s*f?\"|\\\n\s*|(?<=install)\s*\n\s*")
EXTRAS = r"(\[[^\]]*\])?([=<>~!@].*)?"
FOREIGN = re.compile(rf"trainyard{EXTRAS}")
OURS = re.compile(rf"trainyard-(library|programs){EXTRAS}")
WORD = re.compile(r"[^\s\"'()]+")
LIBRARY = {"./library", "library"}
HISTORY = {"CHANGELOG.md"}


def from_an_index(text: str) -> Iterator[str]:
    """Parts of a text that install the other project, or one of our distributions by its name.

    An extra without the library counts: pip would take the library that it pins from an index.
    """
    joined = BROKEN_LINE.sub(" ", text)
    for match in COMMAND.finditer(joined):
        words = {word.rstrip(".,:") for word in WORD.findall(match[1])}
        extras = any(word.startswith(".[") for word in words)
        foreign = any(FOREIGN.fullmatch(word) for word in words)
        ours = any(OURS.fullmatch(word) for word in words) and "--no-index" not in match[0]
        if foreign or ours or (extras and not LIBRARY & words):
            yield match[0]
    yield from (match[0] for match in PROSE.finditer(joined))


@pytest.mark.parametrize(
    "text",
    [
        "pip install trainyard",
        "pip install --no-index trainyard",
        "`uv pip install -U 'trainyard-programs[s3]'`",
        "uv tool install trainyard-library",
        "pip install '.[server]'",
        '"pip install "\n    "trainyard"',
        "RUN pip install torch \\\n    trainyard-library==1.0.0",
        "install trainyard[provisioner,kubernetes]",
        "Install `trainyard`.",
        "uv add trainyard",
    ],
)
def test_a_name_of_an_index_in_a_command_is_found(text: str) -> None:
    assert list(from_an_index(text))


@pytest.mark.parametrize(
    "text",
    [
        "pip install ./library '.[s3]'",
        "/usr/lib/trainyard/bin/pip install -c constraints.txt -e ./library -e '.[server]'",
        "uv tool install --no-index --find-links wheels 'trainyard-programs[embedded]'",
        "pip install dist/trainyard_library-1.0.0-py3-none-any.whl",
        "pip install torch; trainyard up",
        "install trainyard-programs[s3] on the nodes (docs/install.md)",
        "install the worker with trainyard-worker.service",
    ],
)
def test_an_installation_from_a_folder_or_the_checkout_passes(text: str) -> None:
    assert list(from_an_index(text)) == []


def test_no_text_installs_from_an_index() -> None:
    found = [
        f"{path.relative_to(ROOT).as_posix()}: {part.strip()}"
        for path in source_files()
        if path != Path(__file__).resolve() and path.name not in HISTORY
        for part in from_an_index(_text(path))
    ]
    assert not found, "\n".join(["install the wheels by their paths (docs/install.md):", *found])


def test_one_version_is_released_everywhere() -> None:
    library, programs = _project("library/pyproject.toml"), _project("pyproject.toml")
    assert (library["name"], programs["name"]) == ("trainyard-library", "trainyard-programs")
    version = trainyard.__version__
    assert library["version"] == programs["version"] == version
    assert f"trainyard-library=={version}" in programs["dependencies"]
    for name in ("package.json", "package-lock.json"):
        assert json.loads(_text(ROOT / "web" / name))["version"] == version
    assert re.findall(r"^## \[(\S+)\] - ", _text(ROOT / "CHANGELOG.md"), re.MULTILINE)[0] == version
    named = re.compile(
        r"\btrainyard[-_](?:library|programs|server|worker|provisioner)[-:](\d+\.[\w.]*\d)"
    )
    for path in source_files():
        if path != Path(__file__).resolve():
            assert set(named.findall(_text(path))) <= {version}, path


def _project(path: str) -> dict[str, Any]:
    project: dict[str, Any] = tomllib.loads(_text(ROOT / path))["project"]
    return project


def _text(path: Path) -> str:
    return path.read_text(encoding="utf-8", errors="ignore")
