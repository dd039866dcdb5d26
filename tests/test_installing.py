"""How texts and messages install Trainyard: from its checkout.

On the package index the name `trainyard` belongs to another project, and `trainyard-programs` could
be taken by anybody.
"""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.test_house_rules import ROOT, source_files

COMMAND = re.compile(
    r"\b(?:pip3?|pipx|uvx?|poetry|conda)\b[^`;&|\n]*\b(?:install|add|download|wheel|run)\b([^`;&|\n]*)"
)
# After `trainyard` a blank may begin the name of something else, as in "trainyard worker".
PROSE = re.compile(
    r"\binstall\w*[ :]+`?(?:trainyard-programs\b(?![/-])|trainyard\b(?![/ .-]))[^\n]*",
    re.IGNORECASE,
)
# Within a Python literal that goes on in the next line, and in a shell command that does.
BROKEN_LINE = re.compile(r"\"\s*\n\s*f?\"|\\\n\s*|(?<=install)\s*\n\s*")
OURS = re.compile(r"trainyard(-programs)?(\[[^\]]*\])?([=<>~!@].*)?")
WORD = re.compile(r"[^\s\"'()]+")
LIBRARY = {"./library", "library"}
HISTORY = {"CHANGELOG.md"}


def from_an_index(text: str) -> Iterator[str]:
    """Parts of a text that install one of our distributions by its name.

    An extra without the library counts: pip would take the library that it pins from an index.
    """
    joined = BROKEN_LINE.sub(" ", text)
    for match in COMMAND.finditer(joined):
        words = {word.rstrip(".,:") for word in WORD.findall(match[1])}
        extras = any(word.startswith(".[") for word in words)
        if any(OURS.fullmatch(word) for word in words) or (extras and not LIBRARY & words):
            yield match[0]
    yield from (match[0] for match in PROSE.finditer(joined))


@pytest.mark.parametrize(
    "text",
    [
        "pip install trainyard",
        "`uv pip install -U 'trainyard-programs[s3]'`",
        "pip install '.[server]'",
        '"pip install "\n    "trainyard"',
        "RUN pip install torch \\\n    trainyard==0.1.0",
        "install trainyard-programs[provisioner,kubernetes]",
        "install trainyard-programs now",
        "Install `trainyard-programs`.",
        "uv add trainyard",
    ],
)
def test_a_name_of_ours_in_a_command_is_found(text: str) -> None:
    assert list(from_an_index(text))


@pytest.mark.parametrize(
    "text",
    [
        "pip install ./library '.[s3]'",
        "/usr/lib/trainyard/bin/pip install -c constraints.txt -e ./library -e '.[server]'",
        "pip install torch; trainyard up",
        "install the worker with trainyard-worker.service",
    ],
)
def test_an_installation_from_the_checkout_passes(text: str) -> None:
    assert list(from_an_index(text)) == []


def test_no_text_installs_trainyard_by_name() -> None:
    found = [
        f"{path.relative_to(ROOT).as_posix()}: {part.strip()}"
        for path in source_files()
        if path != Path(__file__).resolve() and path.name not in HISTORY
        for part in from_an_index(_text(path))
    ]
    assert not found, "\n".join(["write `pip install ./library '.[extra]'`:", *found])


def _text(path: Path) -> str:
    return path.read_text(encoding="utf-8", errors="ignore")
