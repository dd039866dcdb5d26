"""Every kind of input gives the same documents, in any number of parts, and names problems."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.trainer.data.inputs import (
    DOCUMENTS,
    WRITERS,
    table,
    write_arrow,
    write_hub_folder,
    write_saved_folder,
    write_saved_split,
)
from trainer.data.cache.producer import InputTokens
from trainer.data.dataset import open_dataset
from trainer.data.files.sources import open_source
from trainer.data.survey import check_input, survey
from trainer.data.tokenizer import BOS, EOS, ByteTokenizer
from trainer.errors import DataError
from trainyard.spec.job import JobSpec, parse_job_spec

STREAM = [token for text in DOCUMENTS for token in (BOS, *text.encode(), EOS)]


@pytest.fixture
def root(tmp_path: Path) -> Path:
    root = tmp_path / "data"
    root.mkdir()
    return root


def spec_of(data: dict[str, Any]) -> JobSpec:
    return parse_job_spec({"data": data, "training": {"seq_len": 4}})


def documents(root: Path, data: dict[str, Any]) -> tuple[list[int], list[int], int]:
    """Return all tokens, the starts of documents, and the number of parts."""
    spec = spec_of(data)
    source, tokenizer = open_source(spec.data, {"data": str(root)}), ByteTokenizer()
    identity = survey(spec, source, tokenizer=tokenizer)
    producer = InputTokens(source, tokenizer, limit=None, identity=identity)
    tokens: list[int] = []
    starts: list[int] = []
    parts = list(producer.parts())
    for part in parts:
        for piece in producer.pieces(part):
            starts += (piece.starts + len(tokens)).tolist()
            tokens += piece.tokens.tolist()
    return tokens, starts, len(parts)


def refusal(root: Path, data: dict[str, Any]) -> str:
    """Return the error of a job that would train on an input."""
    with pytest.raises(DataError) as caught:
        open_dataset(
            spec_of(data),
            roots={"data": str(root)},
            cache_dir=root.with_name("cache"),
            on_progress=lambda: None,
            processes=1,
        )
    assert caught.value.path is not None
    assert caught.value.path in str(caught.value)
    return str(caught.value)


# ---- what an input is made of -------------------------------------------------------------------


@pytest.mark.parametrize("part_bytes", [1, 7, 64, 500, 32 << 20])
@pytest.mark.parametrize("kind", WRITERS)
def test_every_kind_of_input_gives_the_same_documents_in_any_parts(
    root: Path, monkeypatch: pytest.MonkeyPatch, kind: str, part_bytes: int
) -> None:
    monkeypatch.setattr("trainer.data.files.reader.PART_BYTES", part_bytes)
    tokens, starts, parts = documents(root, WRITERS[kind](root, DOCUMENTS))
    assert tokens == STREAM
    assert starts == [place for place, token in enumerate(STREAM) if token == BOS]
    assert parts > 1 or part_bytes > 100


@pytest.mark.parametrize("block", [1, 3, 10, 1 << 20])
def test_a_text_is_the_same_however_it_is_read(
    root: Path, monkeypatch: pytest.MonkeyPatch, block: int
) -> None:
    """Blocks of a few bytes end inside characters, lines and line breaks."""
    monkeypatch.setattr("trainer.data.files.lines.BLOCK_BYTES", block)
    monkeypatch.setattr("trainer.data.files.reader.PART_BYTES", 11)
    monkeypatch.setattr("trainer.data.files.reader.PIECE_BYTES", 5)
    text = "ünï\n漢字漢字漢字\n\n\nlast 漢"
    (root / "text").write_text(text)
    tokens, starts, _ = documents(root, {"source": "text", "path": "data:text"})
    assert tokens == [BOS, *text.encode(), EOS]
    assert starts == [0]


def test_empty_texts_and_blank_lines_are_left_out(root: Path) -> None:
    lines = ['{"text": "a"}', "", '{"text": ""}', "  ", '{"text": "b"}']
    (root / "input").write_text("\n".join(lines))
    tokens, _, _ = documents(root, {"source": "jsonl", "path": "data:input"})
    assert tokens == [BOS, ord("a"), EOS, BOS, ord("b"), EOS]


def test_a_byte_order_mark_is_no_text(root: Path) -> None:
    (root / "input.jsonl").write_bytes(b'\xef\xbb\xbf{"text": "a"}\r\n{"text": "b"}\r\n')
    tokens, _, _ = documents(root, {"source": "jsonl", "path": "data:."})
    assert tokens == [BOS, ord("a"), EOS, BOS, ord("b"), EOS]


def test_zstandard_is_read(root: Path) -> None:
    line = b'{"text": "compressed"}\n'
    with pa.CompressedOutputStream(str(root / "input.jsonl.zst"), "zstd") as file:
        file.write(line * 3)
    tokens, _, _ = documents(root, {"source": "jsonl", "path": "data:."})
    assert tokens == [BOS, *b"compressed", EOS] * 3


def test_another_field_is_the_text(root: Path) -> None:
    (root / "input.jsonl").write_text('{"text": 1, "body": "a"}\n')
    pq.write_table(pa.table({"text": [1], "body": ["a"]}), root / "input.parquet")
    for kind in ("jsonl", "parquet"):
        tokens, _, _ = documents(root, {"source": kind, "path": "data:.", "text_field": "body"})
        assert tokens == [BOS, ord("a"), EOS]


def test_other_files_of_a_folder_are_left_out(root: Path) -> None:
    (root / "notes.txt").write_text("not data")
    (root / "more.jsonl").write_text('{"text": "lines"}\n')
    pq.write_table(table(["rows"]), root / "more.parquet")
    assert documents(root, {"source": "jsonl", "path": "data:."})[0] == [BOS, *b"lines", EOS]
    assert documents(root, {"source": "parquet", "path": "data:."})[0] == [BOS, *b"rows", EOS]


# ---- splits -------------------------------------------------------------------------------------


@pytest.mark.parametrize("write", [write_hub_folder, write_saved_folder])
def test_a_split_is_chosen_and_a_missing_one_refused(root: Path, write: Callable[..., Any]) -> None:
    data = write(root, DOCUMENTS)
    tokens, _, _ = documents(root, {**data, "split": "test"})
    assert tokens == [BOS, *b"not to be trained on", EOS]
    message = refusal(root, {**data, "split": "dev"})
    assert "has no data.split='dev'; legal: test, train" in message


def test_a_single_saved_split_and_a_single_linked_file_are_inputs(root: Path) -> None:
    write_saved_split(root / "any", [DOCUMENTS])
    assert documents(root, {"source": "huggingface", "path": "data:any"})[0] == STREAM
    pq.write_table(table(DOCUMENTS), root / "blob")
    (root / "linked.parquet").symlink_to("blob")
    assert documents(root, {"source": "huggingface", "path": "data:linked.parquet"})[0] == STREAM


def test_saved_shards_that_are_no_longer_listed_are_left_out(root: Path) -> None:
    write_saved_split(root / "set", [DOCUMENTS])
    write_arrow(root / "set/data-00000-of-00009.arrow", ["from another save"])
    assert documents(root, {"source": "huggingface", "path": "data:set"})[0] == STREAM
    (root / "set/state.json").write_text("[]")
    message = refusal(root, {"source": "huggingface", "path": "data:set"})
    assert "is no state.json of a data set: it lists no '_data_files'" in message


# ---- what is refused ----------------------------------------------------------------------------

GOOD = json.dumps({"text": "a good line"}) + "\n"


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('{"body": "a", "id": 3}', "has no field 'text' (data.text_field); its fields: 'body', "),
        ("{}", "its fields: none"),
        ('{"text": 17}', "holds no string in field 'text' (data.text_field) but 17"),
        ('{"text": null}', "but null"),
        ('{"text": ["a", "b"]}', 'but ["a", "b"]'),
        ('["text"]', "is no JSON object but '[\"text\"]'"),
        ('{"text": "cut', "is no JSON (Unterminated string"),
        ('{"text": "a"} {"text": "b"}', "is no JSON (Extra data"),
        ('{"text": "' + "x" * 200 + "}", "x..."),
        ('{"text": "half \\ud83d"}', "holds half a surrogate pair in field 'text' at character 5"),
        (b'{"text": "\xff"}', "is no UTF-8 at byte 10"),
        ("[" * 100_000, "is no JSON"),
    ],
)
@pytest.mark.parametrize("part_bytes", [30, 32 << 20])
def test_a_bad_line_is_named_with_its_number_and_content(
    root: Path,
    monkeypatch: pytest.MonkeyPatch,
    line: str | bytes,
    message: str,
    part_bytes: int,
) -> None:
    monkeypatch.setattr("trainer.data.files.reader.PART_BYTES", part_bytes)
    bad = line if isinstance(line, bytes) else line.encode()
    (root / "input.jsonl").write_bytes(GOOD.encode() * 4 + bad + b"\n" + GOOD.encode())
    told = refusal(root, {"source": "jsonl", "path": "data:."})
    assert f"data.path='data:.': {root}/input.jsonl line 5 " in told
    assert message in told
    assert len(told) < 500


def test_a_line_in_a_compressed_file_is_named(root: Path) -> None:
    (root / "input.jsonl.gz").write_bytes(gzip.compress(GOOD.encode() * 4 + b"{}\n"))
    assert "input.jsonl.gz line 5 has no field" in refusal(
        root, {"source": "jsonl", "path": "data:."}
    )


@pytest.mark.parametrize("name", ["input.jsonl.gz", "input.jsonl.zst"])
@pytest.mark.parametrize("damage", ["cut", "other", "flipped"])
def test_a_damaged_compressed_file_is_refused(root: Path, name: str, damage: str) -> None:
    kind = "gzip" if name.endswith("gz") else "zstd"
    with pa.CompressedOutputStream(str(root / name), kind) as file:
        file.write(b"".join(b'{"text": "%d"}\n' % (n * n) for n in range(10_000)))
    content = bytearray((root / name).read_bytes())
    if damage == "flipped":
        content[len(content) // 2] ^= 1
    damaged = {"cut": content[:-100], "other": bytearray(b"plain text"), "flipped": content}
    (root / name).write_bytes(damaged[damage])
    told = refusal(root, {"source": "jsonl", "path": "data:."})
    # A flipped bit may first appear as an invalid line.
    assert "is cut short or damaged" in told or (damage == "flipped" and " line " in told)


@pytest.mark.parametrize(
    ("content", "helps"),
    [
        (
            '[\n{"text": "a"},\n{"text": "b"}\n]\n',
            "; legal is one object a line, as of `jq -c '.[]'`",
        ),
        ('[{"text": "a"}, {"text": "b"}]\n', "; legal is one object a line, as of `jq -c '.[]'`"),
        ('{\n  "text": "a"\n}\n', "; legal is one object a line, as of `jq -c '.'`"),
    ],
)
def test_a_document_over_many_lines_is_refused_with_what_makes_lines_of_it(
    root: Path, content: str, helps: str
) -> None:
    (root / "input.json").write_text(content)
    told = refusal(root, {"source": "jsonl", "path": "data:."})
    assert "input.json line 1 is no JSON" in told
    assert told.endswith(helps)


def test_a_line_longer_than_the_limit_is_refused(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("trainer.data.files.lines.LINE_BYTES", 1 << 20)
    (root / "input.jsonl").write_text(GOOD + json.dumps({"text": "x" * 2_000_000}))
    assert "line 2 is longer than 1 MiB" in refusal(root, {"source": "jsonl", "path": "data:."})


@pytest.mark.parametrize("kind", ["parquet", "huggingface"])
@pytest.mark.parametrize(
    ("column", "message"),
    [
        (pa.array(["a", "b", "c", "d", "e", None]), "row 5 holds no text (null) in column 'text'"),
        (pa.array([1, 2]), "holds int64 in column 'text' (data.text_field), which must be text"),
        (pa.array([["a"]]), "holds list<"),
    ],
)
def test_a_bad_column_is_named(root: Path, kind: str, column: pa.Array, message: str) -> None:
    content = pa.table({"text": column, "id": list(range(len(column)))})
    if kind == "parquet":
        pq.write_table(content, root / "input.parquet", row_group_size=2)
    else:
        with (
            pa.OSFile(str(root / "input.arrow"), "wb") as file,
            pa.ipc.new_stream(file, content.schema) as stream,
        ):
            stream.write_table(content, max_chunksize=2)
    data = {"source": kind, "path": "data:."}
    assert message in refusal(root, data)
    told = refusal(root, {**data, "text_field": "body"})
    assert "has no column 'body' (data.text_field); there are: 'text', 'id'" in told


@pytest.mark.parametrize("name", ["input.parquet", "input.arrow"])
@pytest.mark.parametrize("content", [b"not a table at all, in no way", b"PAR1 PAR1", b"ARROW1 x"])
def test_a_damaged_table_is_refused(root: Path, name: str, content: bytes) -> None:
    (root / name).write_bytes(content)
    kind = "parquet" if name.endswith("parquet") else "huggingface"
    assert "file, or damaged: " in refusal(root, {"source": kind, "path": "data:."})


def test_a_column_that_is_no_utf8_is_refused(root: Path) -> None:
    column = pa.array([b"fine", b"\xff"]).view(pa.string())
    pq.write_table(pa.table({"text": column}), root / "input.parquet")
    assert "damaged" in refusal(root, {"source": "parquet", "path": "data:."})


def test_a_text_that_is_binary_is_refused(root: Path) -> None:
    (root / "weights.bin").write_bytes(b"a" * 2_000_000 + b"\0")
    told = refusal(root, {"source": "text", "path": "data:."})
    assert "weights.bin holds a NUL byte at offset 2000000" in told


@pytest.mark.parametrize("kind", ["jsonl", "parquet", "huggingface"])
def test_a_folder_without_files_of_its_kind_is_refused(root: Path, kind: str) -> None:
    (root / "notes.txt").write_text("nothing that can be read as a table")
    assert "is empty: no " in refusal(root, {"source": kind, "path": "data:."})


def test_rows_that_do_not_fill_a_sequence_are_refused_with_the_counts(root: Path) -> None:
    pq.write_table(table(["a"]), root / "input.parquet")
    told = refusal(root, {"source": "parquet", "path": "data:."})
    assert "holds 3 tokens in 1 documents" in told
    assert "training.seq_len=4 needs 5" in told


@pytest.mark.parametrize("kind", ["jsonl", "parquet"])
def test_the_check_before_the_ranks_start_sees_a_missing_field(root: Path, kind: str) -> None:
    data = WRITERS[kind](root, DOCUMENTS)
    check_input(spec_of(data), {"data": str(root)})
    with pytest.raises(DataError, match="'body'"):
        check_input(spec_of({**data, "text_field": "body"}), {"data": str(root)})


def test_the_kind_and_the_field_name_the_cache(root: Path) -> None:
    """One file, read in two ways: neither uses the other's tokens."""
    (root / "input").write_text('{"text": "from here", "body": "or from there"}\n')
    seen = set()
    for data in (
        {"source": "jsonl"},
        {"source": "jsonl", "text_field": "body"},
        {"source": "text"},
    ):
        dataset = open_dataset(
            spec_of({**data, "path": "data:input"}),
            roots={"data": str(root)},
            cache_dir=root.with_name("cache"),
            on_progress=lambda: None,
        )
        seen.add(dataset.windows(np.arange(1)).tobytes())
    assert len(seen) == 3
