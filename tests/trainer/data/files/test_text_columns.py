"""The text column of a table: its types and its position."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from tests.trainer.data.files.test_sources import documents, refusal
from tests.trainer.data.inputs import table
from trainer.data.tokenizer import BOS, EOS


@pytest.fixture
def root(tmp_path: Path) -> Path:
    folder = tmp_path / "data"
    folder.mkdir()
    return folder


def encoded(texts: list[str | None], kind: pa.DataType, indices: pa.DataType | None) -> pa.Array:
    """Return texts as a column of a type; with an index type, as a dictionary column."""
    if indices is None:
        return pa.array(texts, type=kind)
    each = list(dict.fromkeys(texts))
    places = pa.array([each.index(text) for text in texts], type=indices)
    return pa.DictionaryArray.from_arrays(places, pa.array(each, type=kind))


def write_table(root: Path, column: pa.Array) -> list[dict[str, Any]]:
    """Write a table in each format that can hold it; return the sections that read one of them."""
    content = pa.table({"text": column})
    for name, writer in (("one", pa.ipc.new_file), ("stream", pa.ipc.new_stream)):
        (root / name).mkdir()
        path = str(root / name / "text.arrow")
        with pa.OSFile(path, "wb") as file, writer(file, content.schema) as arrow:
            for start in range(0, len(column), 2):
                arrow.write_table(content.slice(start, 2))
    sections = [{"source": "huggingface", "path": f"data:{name}"} for name in ("one", "stream")]
    try:
        pq.write_table(content, root / "input.parquet", row_group_size=2)
    except pa.ArrowNotImplementedError:  # dictionaries of views, and runs, have no form there
        return sections
    return [*sections, {"source": "parquet", "path": "data:input.parquet"}]


@pytest.mark.parametrize("kind", [pa.string(), pa.large_string(), pa.string_view()])
@pytest.mark.parametrize("indices", [None, pa.int8(), pa.uint16(), pa.int64()])
def test_every_type_of_text_column_is_read(
    root: Path, kind: pa.DataType, indices: pa.DataType | None
) -> None:
    texts: list[str | None] = ["a", "a text of more than twelve bytes, ä", "", "a"]
    sections = write_table(root, encoded(texts, kind, indices))
    assert len(sections) == (2 if indices is not None and kind == pa.string_view() else 3)
    expected = [t for text in texts if text for t in (BOS, *text.encode(), EOS)]
    for data in sections:
        tokens, starts, _ = documents(root, data)
        assert (tokens, len(starts)) == (expected, 3)


def test_text_of_an_extension_type_is_read(root: Path) -> None:
    column = pa.ExtensionArray.from_storage(pa.json_(pa.utf8()), pa.array(['"a"', '"b"']))
    for data in write_table(root, column):
        assert documents(root, data)[0] == [BOS, *b'"a"', EOS, BOS, *b'"b"', EOS]


@pytest.mark.parametrize("kind", [pa.string(), pa.large_string()])
def test_text_of_which_runs_are_stored_is_read(root: Path, kind: pa.DataType) -> None:
    for data in write_table(root, pc.run_end_encode(pa.array(["a", "a", "a", "b"], kind))):
        assert documents(root, data)[0] == [BOS, *b"a", EOS] * 3 + [BOS, *b"b", EOS]


@pytest.mark.parametrize("kind", [pa.string(), pa.string_view()])
@pytest.mark.parametrize("indices", [None, pa.int8()])
def test_a_null_is_refused_in_every_type_of_text(
    root: Path, kind: pa.DataType, indices: pa.DataType | None
) -> None:
    for data in write_table(root, encoded(["a", "b", "c", None], kind, indices)):
        assert "row 3 holds no text (null)" in refusal(root, data)


def test_bytes_that_are_no_text_are_refused_in_views(root: Path) -> None:
    content = pa.array([b"ok", b"\xff\xfe and more than twelve"], pa.binary_view())
    column = pa.Array.from_buffers(pa.string_view(), 2, content.buffers())
    for data in write_table(root, column):
        assert "is no Arrow file" in (message := refusal(root, data)) or "is no Parquet" in message
    (root / "bytes").mkdir()
    for data in write_table(root / "bytes", content)[:1]:
        data = {**data, "path": "data:bytes/one"}
        assert "holds binary_view in column 'text'" in refusal(root, data)


@pytest.mark.parametrize("kind", ["parquet", "huggingface"])
@pytest.mark.parametrize("empty", [{}, {"text": pa.array([], pa.null())}], ids=["none", "null"])
def test_a_table_without_rows_needs_no_column(
    root: Path, kind: str, empty: dict[str, pa.Array]
) -> None:
    for name, content in (("a", table(["one", "two"])), ("b", pa.table(empty))):
        if kind == "parquet":
            pq.write_table(content, root / f"{name}.parquet")
        else:
            with (
                pa.OSFile(str(root / f"{name}.arrow"), "wb") as file,
                pa.ipc.new_stream(file, content.schema) as stream,
            ):
                stream.write_table(content)
    tokens, _, _ = documents(root, {"source": kind, "path": "data:."})
    assert tokens == [BOS, *b"one", EOS, BOS, *b"two", EOS]


def test_a_column_is_not_taken_for_a_field_of_a_struct(root: Path) -> None:
    content = pa.table({"a": [{"b": "nested"}], "a.b": ["flat"]})
    pq.write_table(content, root / "input.parquet")
    data = {"source": "parquet", "path": "data:.", "text_field": "a.b"}
    tokens, _, _ = documents(root, data)
    assert tokens == [BOS, *b"flat", EOS]
