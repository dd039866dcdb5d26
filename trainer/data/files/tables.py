"""Readers of Parquet files and of `datasets`' Arrow files; one column holds the text."""

from __future__ import annotations

import io
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from trainer.data.files.corpus import Corpus, InputFile
from trainer.data.files.lines import listed
from trainer.data.files.reader import Slice, Text

BATCH_ROWS = 256
BUFFER_BYTES = 1 << 20
ARROW_FILE_MAGIC = b"ARROW1"
TEXT_TYPES = (pa.types.is_string, pa.types.is_large_string, pa.types.is_string_view)


@dataclass(frozen=True)
class _Column:
    """The column of a table that holds the text."""

    corpus: Corpus
    text_field: str

    @contextmanager
    def _damage_refused(self, file: InputFile, kind: str) -> Iterator[None]:
        try:
            yield
        except (pa.ArrowException, OSError) as error:
            self.corpus.refuse(file.path, f"is no {kind} file, or damaged: {error}")

    def _check(self, file: InputFile, schema: pa.Schema) -> int:
        """Return the index of the text column."""
        if schema.names.count(self.text_field) != 1:
            self.corpus.refuse(
                file.path,
                f"has no column {self.text_field!r} (data.text_field); there are: "
                f"{listed(schema.names)}",
            )
        number = schema.get_field_index(self.text_field)
        kind = schema.field(number).type
        if not _is_text(kind):
            self.corpus.refuse(
                file.path,
                f"holds {kind} in column {self.text_field!r} (data.text_field), which must be text",
            )
        return number

    def _texts(self, file: InputFile, rows: pa.Array, first_row: int) -> Iterator[Text]:
        rows = _plain(rows)
        if rows.null_count:
            row = first_row + rows.is_null().index(pa.scalar(value=True)).as_py()
            self.corpus.refuse(
                file.path,
                f"row {row} holds no text (null) in column {self.text_field!r}; rows count from 0",
            )
        rows.validate(full=True)  # Parquet does not guarantee that its strings are UTF-8
        for text in rows.cast(pa.large_binary()).to_pylist():
            if text:
                yield Text(text)


def _is_text(kind: pa.DataType) -> bool:
    """Return whether an Arrow type is text, in any encoding."""
    if isinstance(kind, pa.BaseExtensionType):  # such as JSON, whose storage type is text
        return _is_text(kind.storage_type)
    if pa.types.is_dictionary(kind):
        return _is_text(kind.value_type)
    if pa.types.is_run_end_encoded(kind):  # no kernel accepts run-end encoded views or dictionaries
        return pa.types.is_string(kind.value_type) or pa.types.is_large_string(kind.value_type)
    return any(is_kind(kind) for is_kind in TEXT_TYPES)


def _plain(rows: pa.Array) -> pa.Array:
    """Return texts in any Arrow encoding as a plain array, even if a dictionary contains nulls."""
    kind = rows.type
    if isinstance(kind, pa.BaseExtensionType):
        return _plain(rows.storage)
    if pa.types.is_dictionary(kind):  # values first: no kernel takes dictionaries of views
        return _plain(rows.dictionary).take(rows.indices)
    if pa.types.is_run_end_encoded(kind):
        return pc.run_end_decode(rows)
    return rows.cast(pa.large_string()) if pa.types.is_string_view(kind) else rows


class Parquet(_Column):
    """Reads Parquet files, row group by row group."""

    def slices(self, file: InputFile) -> Iterator[Slice]:
        """Yield the row groups; a file without rows may lack the text column."""
        with self._opened(file) as parquet:
            if parquet.metadata.num_rows == 0:
                return
            column = self._check(file, parquet.schema_arrow)
            # Row-group metadata counts leaf columns, so nested columns before the text column shift
            # its index.
            leaf = [parquet.schema.column(i).path for i in range(len(parquet.schema))].index(
                parquet.schema_arrow.names[column]
            )
            groups = parquet.metadata.num_row_groups
            sizes = [
                parquet.metadata.row_group(group).column(leaf).total_uncompressed_size
                for group in range(groups)
            ]
        for group, size in enumerate(sizes):
            yield Slice(file, group, group + 1, size)

    def texts(self, part: Slice) -> Iterator[Text]:
        """Yield the text of each row; empty texts are omitted."""
        with self._opened(part.file) as parquet:
            self._check(part.file, parquet.schema_arrow)
            metadata = parquet.metadata
            row = sum(metadata.row_group(group).num_rows for group in range(part.start))
            for batch in parquet.iter_batches(
                batch_size=BATCH_ROWS,
                row_groups=range(part.start, part.stop),
                columns=[self.text_field],
                use_threads=False,
            ):
                # Select the column from the batch: the name `a.b` would also select a field of the
                # struct `a`.
                yield from self._texts(part.file, batch.column(self.text_field), row)
                row += batch.num_rows

    @contextmanager
    def _opened(self, file: InputFile) -> Iterator[pq.ParquetFile]:
        with (
            self.corpus.open(file) as opened,
            self._damage_refused(file, "Parquet"),
            # With a buffer, a column is read page by page. Without one, a whole row group would be
            # in memory.
            pq.ParquetFile(
                pa.OSFile(_same_file(opened)), buffer_size=BUFFER_BYTES, pre_buffer=False
            ) as parquet,
        ):
            yield parquet


class Arrow(_Column):
    """Reads Arrow streams and files, record batch by record batch."""

    def slices(self, file: InputFile) -> Iterator[Slice]:
        """Yield the record batches; a file without rows may lack the text column."""
        with self._opened(file) as (schema, batches):
            held = list(batches)
            if not any(batch.num_rows for batch in held):
                return
            column = self._check(file, schema)
            sizes = [batch.column(column).nbytes for batch in held]
        for number, size in enumerate(sizes):
            yield Slice(file, number, number + 1, size)

    def texts(self, part: Slice) -> Iterator[Text]:
        """Yield the text of each row; empty texts are omitted."""
        row = 0
        with self._opened(part.file) as (schema, batches):
            column = self._check(part.file, schema)
            for number, batch in enumerate(batches):
                if number >= part.stop:
                    break
                if number >= part.start:
                    yield from self._texts(part.file, batch.column(column), row)
                row += batch.num_rows

    @contextmanager
    def _opened(self, file: InputFile) -> Iterator[tuple[pa.Schema, Iterator[Any]]]:
        with (
            self.corpus.open(file) as opened,
            self._damage_refused(file, "Arrow"),
            # The file is memory-mapped, so that skipped batches are never read.
            pa.memory_map(_same_file(opened)) as content,
        ):
            if opened.read(len(ARROW_FILE_MAGIC)) == ARROW_FILE_MAGIC:
                whole = pa.ipc.open_file(content)
                numbers = range(whole.num_record_batches)
                yield whole.schema, (whole.get_batch(number) for number in numbers)
            else:
                stream = pa.ipc.open_stream(content)
                yield stream.schema, iter(stream)


def _same_file(opened: io.FileIO) -> str:
    """Return a path to the open file, so that Arrow opens the inode checked by the corpus."""
    return f"/proc/self/fd/{opened.fileno()}"
