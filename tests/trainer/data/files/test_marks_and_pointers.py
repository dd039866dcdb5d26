"""Byte order marks of inputs, and Git LFS pointers instead of files."""

from __future__ import annotations

import codecs
import gzip
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from pyarrow import parquet as pq

from tests.trainer.data.files.test_sources import documents, refusal
from tests.trainer.data.inputs import table
from trainer.data.survey import check_input
from trainer.data.tokenizer import BOS, EOS
from trainer.errors import DataError
from trainyard.spec.job import JobSpec

MARK = codecs.BOM_UTF8
POINTER = (
    f"version https://git-lfs.github.com/spec/v1\noid sha256:{'4d' * 32}\nsize 123456789\n"
).encode()


@pytest.fixture
def root(tmp_path: Path) -> Path:
    folder = tmp_path / "data"
    folder.mkdir()
    return folder


@pytest.mark.parametrize("part", [1, 2, 3, 4, 5, 1 << 20])
@pytest.mark.parametrize("block", [1, 2, 1 << 20])
def test_a_mark_is_dropped_however_a_text_is_cut(
    root: Path, monkeypatch: pytest.MonkeyPatch, part: int, block: int
) -> None:
    monkeypatch.setattr("trainer.data.files.reader.PART_BYTES", part)
    monkeypatch.setattr("trainer.data.files.lines.BLOCK_BYTES", block)
    (root / "a").write_bytes(MARK + b"one\ntwo\n")
    (root / "b").write_bytes(MARK)  # no text, as an empty file
    (root / "c").write_bytes(b"three " + MARK + b" four")  # within a text it stays
    tokens, starts, _ = documents(root, {"source": "text", "path": "data:."})
    assert tokens == [BOS, *b"one\ntwo\n", EOS, BOS, *b"three " + MARK + b" four", EOS]
    assert len(starts) == 2


@pytest.mark.parametrize(
    ("encoding", "mark", "name"),
    [
        ("utf-16-le", codecs.BOM_UTF16_LE, "UTF-16"),
        ("utf-16-be", codecs.BOM_UTF16_BE, "UTF-16"),
        ("utf-32-le", codecs.BOM_UTF32_LE, "UTF-32"),
        ("utf-32-be", codecs.BOM_UTF32_BE, "UTF-32"),
    ],
)
def test_marks_of_other_encodings_are_refused_by_name(
    root: Path, encoding: str, mark: bytes, name: str
) -> None:
    # Of two-byte encodings no byte of this text is NUL.
    (root / "text").write_bytes(mark + "\u6f22\u5b57".encode(encoding))
    line = json.dumps({"text": "a"}) + "\n"
    (root / "lines.jsonl").write_bytes(mark + line.encode(encoding))
    with gzip.open(root / "packed.jsonl.gz", "wb") as file:
        file.write(mark + line.encode(encoding))
    for source, file_name in (
        ("text", "text"),
        ("jsonl", "lines.jsonl"),
        ("jsonl", "packed.jsonl.gz"),
    ):
        message = refusal(root, {"source": source, "path": f"data:{file_name}"})
        assert f"begins with the byte order mark of {name}; legal is UTF-8" in message


@pytest.mark.parametrize(
    ("source", "name"),
    [
        ("text", "b.txt"),
        ("jsonl", "b.jsonl"),
        ("jsonl", "b.jsonl.gz"),
        ("parquet", "b.parquet"),
        ("huggingface", "b.arrow"),
        ("huggingface", "b.parquet"),
        ("huggingface", "state.json"),
    ],
)
def test_the_check_refuses_a_pointer_wherever_it_lies(root: Path, source: str, name: str) -> None:
    (root / "a.txt").write_text("text " * 100)
    (root / "a.jsonl").write_text(json.dumps({"text": "text " * 100}) + "\n")
    pq.write_table(table(["text " * 100]), root / "a.parquet")
    (root / name).write_bytes(POINTER)
    check(root, {"source": source, "path": "data:."}, name)


def check(root: Path, data: Mapping[str, Any], name: str) -> None:
    spec = JobSpec.model_validate({"name": "job", "data": dict(data), "training": {"seq_len": 8}})
    with pytest.raises(DataError) as caught:
        check_input(spec, {"data": str(root)})
    assert f"{name} is a pointer of Git LFS to a file of 123,456,789 bytes" in str(caught.value)
    assert "data.path=" in str(caught.value)
    assert caught.value.path == str(root / name)


def test_a_text_about_pointers_is_trained_on(root: Path) -> None:
    (root / "text").write_bytes(b"# About pointers\n" + POINTER)
    tokens, _, _ = documents(root, {"source": "text", "path": "data:text"})
    assert tokens[1:-1] == [*b"# About pointers\n" + POINTER]
