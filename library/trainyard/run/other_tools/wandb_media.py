"""Images, histograms, tables and artifacts of wandb, converted to calls of a run."""

from __future__ import annotations

import glob
import io
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from trainyard.run.artifacts.artifact_records import (
    LONGEST_NAME,
    MAX_BINS,
    TABLE_ENDING,
    legal_artifact_name,
    legal_kind,
)
from trainyard.run.session.script_run import Run

Warn = Callable[[str, str], None]
"""Function that warns about a call of wandb once per name; arguments: name and problem."""


class Image:
    """`wandb.Image`: a path, a PIL image, a matplotlib figure, an array or a tensor.

    Floats range from 0 to 1, from -1 to 1 if some are negative, or from 0 to 255 if one is outside
    -1 to 1. Booleans are black and white. Other numbers range from 0 to 255. As in wandb, the
    channels of a tensor are its first dimension, and the channels of an array its last.
    """

    def __init__(
        self, data_or_path: Any, mode: str | None = None, caption: str | None = None, **_: object
    ) -> None:
        self.caption = caption or ""
        self.image = _pixels(data_or_path)
        if mode is not None and hasattr(self.image, "convert"):
            self.image = self.image.convert(mode)

    def log_to(self, run: Run, name: str, step: int) -> None:
        """Log the image to a run."""
        run.log_image(legal_artifact_name(name), self.image, step=step, caption=self.caption)


class Histogram:
    """`wandb.Histogram` of a sequence; `np_histogram` is illegal, as Trainyard computes the bins.

    More than 512 bins become 512.
    Raises:
        ValueError: no sequence is given, or `np_histogram` is given.
    """

    def __init__(
        self, sequence: Any = None, np_histogram: object = None, num_bins: int = 64
    ) -> None:
        if sequence is None or np_histogram is not None:
            raise ValueError("wandb.Histogram takes a sequence here, not np_histogram")
        self.sequence = sequence
        self.num_bins = min(num_bins, MAX_BINS)

    def log_to(self, run: Run, name: str, step: int) -> None:
        """Log the histogram to a run."""
        run.log_histogram(legal_artifact_name(name), self.sequence, step=step, bins=self.num_bins)


class Table:
    """`wandb.Table`: columns and rows; of media in a cell, only the name of the type is stored.

    Raises:
        ValueError: a row has the wrong number of cells.
    """

    def __init__(
        self,
        columns: Sequence[object] | None = None,
        data: Any = None,
        rows: Any = None,
        dataframe: Any = None,
        **_: object,
    ) -> None:
        frame = data if dataframe is None and hasattr(data, "itertuples") else dataframe
        if frame is not None:
            columns, data = list(frame.columns), frame.itertuples(index=False, name=None)
        given = data if data is not None else rows
        self.columns = ["Input", "Output", "Expected"] if columns is None else list(columns)
        self.data: list[list[Any]] = []
        for row in given if given is not None else ():
            self.add_data(*row)

    def add_data(self, *data: Any) -> None:
        """Add a row.

        Raises:
            ValueError: the row has the wrong number of cells.
        """
        if len(data) != len(self.columns):
            raise ValueError(f"a row of {len(data)} cells; legal: {len(self.columns)}")
        self.data.append([type(cell).__name__ if _is_media(cell) else cell for cell in data])

    def add_column(self, name: str, data: Sequence[Any], **_: object) -> None:
        """Add a column.

        Raises:
            ValueError: the column has another number of cells than the table has rows.
        """
        if self.data and len(data) != len(self.data):
            raise ValueError(f"a column of {len(data)} cells; legal: {len(self.data)}")
        self.data = self.data or [[] for _ in range(len(data))]
        self.columns.append(name)
        for row, cell in zip(self.data, data, strict=True):
            row.append(type(cell).__name__ if _is_media(cell) else cell)

    def log_to(self, run: Run, name: str, step: int) -> None:
        """Log the table to a run."""
        legal = legal_artifact_name(name)
        if not legal.endswith(TABLE_ENDING):
            legal = legal_artifact_name(legal, longest=LONGEST_NAME - len(TABLE_ENDING))
        run.log_table(legal, self.columns, self.data, step=step)


class Artifact:
    """`wandb.Artifact`: several files with the names `<name>/<file>`."""

    def __init__(self, name: str, type: str, **_: object) -> None:  # noqa: A002 - wandb's name
        self.name = name
        self.type = type
        self._files: list[tuple[Path, str]] = []

    def add_file(self, local_path: str, name: str | None = None, **_: object) -> None:
        """Add a file.

        Raises:
            ValueError: the file does not exist.
        """
        if not Path(local_path).is_file():
            raise ValueError(f"local_path={os.fspath(local_path)!r}: a file is legal")
        self._files.append((Path(local_path), name or Path(local_path).name))

    def add_dir(self, local_path: str, name: str | None = None, **_: object) -> None:
        """Add all files of a folder.

        Raises:
            ValueError: the folder does not exist.
        """
        if not Path(local_path).is_dir():
            raise ValueError(f"local_path={os.fspath(local_path)!r}: a folder is legal")
        self._files.append((Path(local_path), name or ""))

    def wait(self, *_: object, **__: object) -> Artifact:
        """Return the artifact immediately; its upload continues."""
        return self

    def log_to(self, run: Run, step: int, warn: Warn) -> None:
        """Log the added files to a run; skip a file that cannot be stored, with a warning."""
        for path, name in self._files:
            whole = legal_artifact_name(f"{self.name}/{name}")
            try:
                run.log_artifact(path, name=whole, kind=legal_kind(self.type), step=step)
            except (OSError, ValueError) as error:
                warn(f"log_artifact({whole!r})", f"is left out: {error}")


class SavedFiles:
    """Files of `wandb.save`, logged immediately or at the end, or twice if they changed in between.

    A file that cannot be stored is skipped, with a warning.
    """

    def __init__(self, warn: Warn) -> None:
        self._warn = warn
        self._later: dict[Path, tuple[str, int | None]] = {}

    def save(
        self, run: Run, pattern: str, *, base_path: str | None, policy: str, step: int
    ) -> list[str]:
        """Log the files that match a pattern, immediately unless `policy` is `end`; return their
        paths."""
        names = sorted(glob.glob(pattern))  # noqa: PTH207 - a pattern may be absolute
        found = [Path(path) for path in names if Path(path).is_file()]
        for path in found:
            name = _relative(path, base_path)
            written = None
            if policy != "end":
                written = self._log(run, path, name=name, step=step)
            if policy != "now":
                self._later[path.resolve()] = (name, written)
        return [str(path) for path in found]

    def finish(self, run: Run, step: int) -> None:
        """Log the files with policy `end`, and the files that have changed since they were
        logged."""
        later, self._later = self._later, {}
        for path, (name, written) in later.items():
            if path.is_file():
                self._log(run, path, name=name, step=step, logged=written)

    def _log(
        self, run: Run, path: Path, *, name: str, step: int, logged: int | None = None
    ) -> int | None:
        """Log a file if its write time differs from `logged`; return its write time."""
        written = None
        try:
            written = path.stat().st_mtime_ns
            if written != logged:
                run.log_artifact(path, name=name, step=step)
        except (OSError, ValueError) as error:
            self._warn(f"save({name!r})", f"is left out: {error}")
        return written


def _is_media(cell: object) -> bool:
    return isinstance(cell, Image | Histogram | Table)


def _relative(path: Path, base_path: str | None) -> str:
    base = Path(base_path) if base_path is not None else Path.cwd()
    try:
        return legal_artifact_name(str(path.resolve().relative_to(base.resolve())))
    except ValueError:
        return legal_artifact_name(path.name)


def _pixels(given: Any) -> Any:
    """Return an image in a form that `Run.log_image` accepts."""
    if callable(getattr(given, "savefig", None)):  # a figure of matplotlib
        file = io.BytesIO()
        given.savefig(file, format="png")
        return file.getvalue()
    if callable(getattr(given, "detach", None)):  # a tensor: channels first
        given = given.detach().cpu()
        if len(given.shape) == 3:
            given = given.permute(1, 2, 0)
        if "bool" in str(given.dtype):
            return (given.byte() * 255).contiguous()
        low, scaled = float(given.min()), given.is_floating_point()
        if not scaled:
            return given.clamp(0, 255).byte().contiguous()
        return (_unit(given, low) * 255).clamp(0, 255).byte().contiguous()
    if hasattr(given, "astype") and hasattr(given, "clip"):  # an array
        if given.dtype.kind == "b":
            return given.astype("uint8") * 255
        if given.dtype.kind == "f":
            given = _unit(given, float(given.min())) * 255
        return given.clip(0, 255).astype("uint8")
    return given


def _unit(values: Any, low: float) -> Any:
    """Scale floats to the range 0 to 1; if one float is outside -1 to 1, all are taken as 0 to
    255."""
    if float(values.max()) > 1 or low < -1:
        return values / 255
    return (values + 1) / 2 if low < 0 else values
