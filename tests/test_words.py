"""Words that describe a person do not describe code; each exception has its reason."""

import ast
import io
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.test_house_rules import source_files

ROOT = Path(__file__).resolve().parent.parent

WORDS = re.compile(
    r"\b(says|speaks|tells|is told|asks|wants|nobody|beside|none any more|in vain|meant)\b",
    re.IGNORECASE,
)

# Relative clauses where the field has a noun: a reader has to read them twice.
PHRASES = (
    "of those that", "those of .{1,40} that there are", "that there are", "as whom", "by it",
    r"of which \S+ cannot",
)  # fmt: skip
UNWANTED = re.compile(
    "|".join([WORDS.pattern, *(rf"\b{each}\b".replace(" ", r"\s+") for each in PHRASES)]),
    re.IGNORECASE,
)

# This file lists the words and shows sentences that use them.
SKIPPED = "tests/test_words.py"

# (file, part of the line): the reason why the word stays.
EXCEPTIONS = {
    ("deploy/trainyard-provisioner.service", "Wants=network-online.target"): "a key of systemd",
    ("deploy/trainyard-scheduler.service", "Wants=network-online.target"): "a key of systemd",
    ("deploy/trainyard-server.service", "Wants=network-online.target"): "a key of systemd",
    ("deploy/trainyard-worker.service", "Wants=network-online.target"): "a key of systemd",
    ("tests/worker/node/test_users.py", "nobody"): "the name of a Unix account",
}

WHOLE_TEXT = {".md", ".ts", ".tsx", ".toml", ".yml", ".service", ".env", ".Dockerfile", ""}
# Part of a name: `tests/beside.py`, `--asks`, `wants_more`.
_NAME = re.compile(r"`[^`\n]*`")

Finding = tuple[int, str]  # line, its text


def test_the_words_of_a_person_are_not_used_of_code() -> None:
    """And every exception is still needed."""
    found = [
        (_name(path), line, text)
        for path in source_files()
        if _name(path) != SKIPPED
        for line, text in words_in(path)
    ]
    broken = [
        f"{name}:{line}: {text.strip()}"
        for name, line, text in found
        if not any(name == file and part in text for file, part in EXCEPTIONS)
    ]
    rule = "code is not a person: write subject, verb, object (docs/glossary.md has the nouns):"
    assert not broken, "\n".join([rule, *broken])
    unused = [
        (file, part)
        for file, part in EXCEPTIONS
        if not any(name == file and part in text for name, _, text in found)
    ]
    assert not unused, f"exceptions that match nothing: {unused}"


def _name(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def words_in(path: Path) -> Iterator[Finding]:
    """Lines of prose in `path` that use one of the words, or begin one of the phrases."""
    if path.suffix != ".py" and path.suffix not in WHOLE_TEXT:
        return
    text = path.read_text(encoding="utf-8")
    if not UNWANTED.search(text):  # most files: to parse them all takes half a minute
        return
    lines = text.splitlines()
    for first, prose in _prose_in_python(text) if path.suffix == ".py" else [(1, text)]:
        plain = _NAME.sub("", prose)
        for found in UNWANTED.finditer(plain):
            # An escaped newline adds no line to the source.
            number = min(first + plain.count("\n", 0, found.start()), len(lines))
            yield number, lines[number - 1]


def _prose_in_python(text: str) -> Iterator[tuple[int, str]]:
    """Yield comments and string literals, docstrings and messages among them, by first line."""
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT:
            yield token.start[0], token.string
    for node in ast.walk(ast.parse(text)):
        # A literal without a space is a key or an identifier, not a sentence.
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and " " in node.value:
            yield node.lineno, node.value


@pytest.mark.parametrize(
    ("name", "text", "lines"),
    [
        ("page.md", "The server tells it.\nfine\n`tells` is a name\nNobody reads\n", [1, 4]),
        ("page.md", "meantime, besides, askew\n", []),
        ("code.py", '"""It says so."""\nx = 1  # asks\nwants = "wants"\n', [1, 2]),
        ("code.py", 'x = f"it {wants} and asks"\n', [1]),
        ("code.py", 'asks(wants, "a b")\ny = """a b\nin vain\n"""\n', [3]),
        ("code.py", '"""Return the ids\nof those\n    that wait."""\n', [2]),
        ("page.md", "A shell, of which a rank cannot\n`by it` is a name\nranked by it\n", [3]),
        ("view.tsx", "// in vain\nconst a = <p>it is told</p>\n", [1, 2]),
        ("picture.png", "says\n", []),
    ],
)
def test_the_detector_finds_what_it_names(
    tmp_path: Path, name: str, text: str, lines: list[int]
) -> None:
    path = tmp_path / name
    path.write_text(text)
    assert sorted({line for line, _ in words_in(path)}) == lines
