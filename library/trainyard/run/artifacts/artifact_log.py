"""Methods by which a script logs images, histograms, tables and files."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, SupportsIndex

from trainyard.run.artifacts.array_copy import copy_array
from trainyard.run.artifacts.artifact_records import (
    FILE,
    HISTOGRAM,
    IMAGE,
    LONGEST_CAPTION,
    MAX_BINS,
    OWN_KINDS,
    TABLE,
    TABLE_ENDING,
    ArtifactRecord,
    check_kind,
    check_name,
)
from trainyard.run.artifacts.artifact_writer import ArtifactWriter, files_below
from trainyard.run.artifacts.histogram_bins import MAX_VALUES, fold
from trainyard.run.artifacts.images import Pixels, encode_png, read_image
from trainyard.run.artifacts.table_content import table_content
from trainyard.run.limits import WarnedNames, legal_step

logger = logging.getLogger("trainyard")

_warned = WarnedNames()

MAX_FILES, MAX_FOLDER_BYTES = 1000, 1024 * 1024 * 1024
"""Maximum number of files in a folder that a script logs, and maximum total size in bytes."""


class ArtifactLog:
    """Base class of a run, with the methods that log images, histograms, tables and files."""

    @property
    def _open_artifacts(self) -> ArtifactWriter | None:
        """Artifact writer of this process; None if the run stores nothing."""
        raise NotImplementedError  # subclasses implement it

    def log_image(
        self, name: str, image: Any, *, step: SupportsIndex | None = None, caption: str = ""
    ) -> None:
        """Store an image with the job.

        The calling thread checks and copies the image: it reads a file, or copies pixels, and waits
        until a GPU has computed a tensor. Another thread encodes and writes the image.

        Args:
            name: name of the image, such as `samples/first`; images of one name form a sequence
                over steps.
            image: path or bytes of a PNG, JPEG or WebP file of at most 16 MiB; an image of PIL; or
                an array or tensor of uint8 with the shape height x width, or height x width x
                channels (1, 3 or 4 channels).
            step: completed optimizer steps.
            caption: a text; it is cut after 1,000 characters.

        Raises:
            ValueError: the name, the step, or the image's format, shape or size is illegal.
            TypeError: the image or the caption has an illegal type.
            OSError: the file cannot be read.
        """
        record = _record(name, IMAGE, step=step, caption=caption)
        content = read_image(image)
        if (writer := self._open_artifacts) is None:
            return
        if isinstance(content, Pixels):
            writer.add(record, partial(encode_png, content), len(content.content))
        else:
            writer.add(record, lambda: content, len(content))

    def log_histogram(
        self, name: str, values: Any, *, step: SupportsIndex | None = None, bins: int = 64
    ) -> None:
        """Store the distribution of values: counts of finite values in bins of equal width.

        The calling thread copies the values, and waits until a GPU has computed a tensor. Another
        thread counts them. NaN and infinite values are counted separately.

        Args:
            name: name of the histogram, such as `weights/layer1`; histograms of one name form a
                sequence over steps.
            values: an array, a tensor or lists, of any shape, with at most 10,000,000 numbers.
            step: completed optimizer steps.
            bins: number of bins, from 1 to 512.

        Raises:
            ValueError: the name, step or number of bins is illegal, or there are too many values.
            TypeError: a value is not a real number.
        """
        if not isinstance(bins, int) or not 1 <= bins <= MAX_BINS:
            raise ValueError(f"bins={bins!r}: a whole number from 1 to {MAX_BINS} is legal")
        record = _record(name, HISTOGRAM, step=step, caption="")
        copied = copy_array(values, what="values", most=MAX_VALUES)
        if (writer := self._open_artifacts) is not None:
            writer.add(record, partial(fold, copied, bins=bins), len(copied.content))

    def log_table(
        self,
        name: str,
        columns: Sequence[object],
        rows: Iterable[Sequence[object]],
        *,
        step: SupportsIndex | None = None,
    ) -> None:
        """Store a table with the job, as JSON with `columns` and `data`.

        The calling thread copies the cells. Numbers, booleans and texts of up to 1,000 characters
        are stored unchanged, None as null, and other values as text. Rows after the first 10,000,
        or beyond 4 MiB, are dropped, with one warning per name.

        Args:
            name: name of the table, such as `predictions`; `.json` is added. Tables of one name
                form a sequence.
            columns: names of the columns, at most 256.
            rows: rows, each with one cell per column.
            step: completed optimizer steps.

        Raises:
            ValueError: the name, step or number of columns is illegal, or a row has the wrong
                number of cells.
        """
        whole = name if name.endswith(TABLE_ENDING) else name + TABLE_ENDING
        record = _record(whole, TABLE, step=step, caption="")
        content, left_out = table_content(columns, rows)
        if left_out and _warned.add(name):
            logger.warning("%d rows of the table %r are left out: it is too large", left_out, name)
        if (writer := self._open_artifacts) is not None:
            writer.add(record, lambda: content, len(content))

    def log_artifact(
        self,
        path: str | os.PathLike[str],
        *,
        name: str | None = None,
        kind: str = "",
        step: SupportsIndex | None = None,
    ) -> None:
        """Store a file, or the files of a folder, with the job.

        The calling thread copies the files into the run directory, so that later changes have no
        effect; the node's supervisor sends the copies to the server. A file that does not fit there
        is dropped, and counted in a warning at the end. Links in a folder are ignored.

        Args:
            path: a file of at most 256 MiB, or a folder with at most 1,000 files and 1 GiB in
                total. Each file of a folder becomes an artifact `<name>/<path in the folder>`.
            name: name of the artifact; when absent, the name of the file or folder. If several
                artifacts have the same name, a download returns the newest.
            kind: kind of artifact, such as `model` or `predictions`; when empty, `file`.
            step: completed optimizer steps.

        Raises:
            FileNotFoundError: the path is neither a regular file nor a folder.
            ValueError: the name, kind or step is illegal, or the file or folder is too large.
            OSError: a file cannot be read.
        """
        if kind in OWN_KINDS:
            raise ValueError(f"kind={kind!r} is reserved for log_{kind}; any other word is legal")
        check_kind(kind or FILE)
        source = Path(path)
        base = check_name(source.resolve().name if name is None else name)
        found = [(source, base)]
        if source.is_dir():
            below = files_below(source, most=MAX_FILES)
            found = [(file, check_name(f"{base}/{inner}")) for file, inner in below]
            size = sum(file.stat().st_size for file, _ in found)
            if size > MAX_FOLDER_BYTES:
                raise ValueError(
                    f"{source} has {size:,} bytes: {MAX_FOLDER_BYTES:,} at most are legal"
                )
        elif not source.is_file():
            kind_of = "is no regular file" if source.exists() else "does not exist"
            raise FileNotFoundError(
                f"path={os.fspath(path)!r} {kind_of}: a file or a folder is legal"
            )
        records = [_record(each, kind or FILE, step=step, caption="") for _, each in found]
        if (writer := self._open_artifacts) is not None:
            for (file, _), record in zip(found, records, strict=True):
                writer.copy(file, record)


def _record(name: str, kind: str, *, step: SupportsIndex | None, caption: str) -> ArtifactRecord:
    if not isinstance(caption, str):
        raise TypeError(f"caption is {type(caption).__name__}: a text is legal")
    return ArtifactRecord(
        time=time.time(),
        kind=kind,
        name=check_name(name),
        step=None if step is None else legal_step(step),
        caption=caption[:LONGEST_CAPTION],
    )
