"""Damaged and hostile checkpoints of torchtitan are refused; no code in them runs."""

from __future__ import annotations

import io
import os
import pickle
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.trainer.titan_import.titan_files import root_of, saved, spec_of, titan_state
from trainer.checkpoint.reader.metadata import read_metadata
from trainer.errors import CheckpointError
from trainer.titan_import.convert import convert

pytestmark = [
    pytest.mark.filterwarnings("ignore:torch.distributed is disabled"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
]


class _Run:
    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (str(self.path),)


def test_code_in_a_pickle_is_not_run(tmp_path: Path) -> None:
    spec, root = spec_of(), root_of(tmp_path)
    step = saved(tmp_path, titan_state(spec))
    made = tmp_path / "made"
    (step / ".metadata").write_bytes(pickle.dumps(_Run(made)))
    with pytest.raises(CheckpointError, match=r"\.metadata is refused: it names posix.mkdir"):
        convert(step, spec, to=root, name="torchtitan")
    step = saved(tmp_path / "number", titan_state(spec) | {"train_state": {"step": _Run(made)}})
    with pytest.raises(CheckpointError, match=r"train_state.step cannot be read"):
        convert(step, spec, to=root, name="torchtitan")
    assert not made.exists()


def test_a_truncated_file_is_refused(tmp_path: Path) -> None:
    spec, root = spec_of(), root_of(tmp_path)
    step = saved(tmp_path, titan_state(spec))
    (file,) = step.glob("*.distcp")
    content = file.read_bytes()
    file.write_bytes(content[:-1])
    with pytest.raises(CheckpointError, match="names a place that is not there"):
        convert(step, spec, to=root, name="torchtitan")
    file.write_bytes(bytes(len(content)))
    with pytest.raises(CheckpointError, match="cannot be read"):
        convert(step, spec, to=root, name="torchtitan")
    index = (step / ".metadata").read_bytes()
    (step / ".metadata").write_bytes(index[: len(index) // 2])
    with pytest.raises(CheckpointError, match=r"\.metadata is refused"):
        convert(step, spec, to=root, name="torchtitan")
    assert list(root.iterdir()) == []


@pytest.mark.parametrize("link", [False, True], ids=["by name", "by link"])
def test_no_file_outside_of_the_folder_is_read(tmp_path: Path, link: bool) -> None:
    spec, root = spec_of(), root_of(tmp_path)
    step = saved(tmp_path, titan_state(spec))
    (file,) = step.glob("*.distcp")
    outside = tmp_path / file.name
    file.rename(outside)
    if link:
        file.symlink_to(outside)
    else:
        metadata = read_metadata((step / ".metadata").read_bytes(), step)
        for place in metadata.storage_data.values():
            place.relative_path = f"../{file.name}"
        metadata.storage_meta = None
        (step / ".metadata").write_bytes(pickle.dumps(metadata))
    with pytest.raises(CheckpointError, match="it names a file elsewhere"):
        convert(step, spec, to=root, name="torchtitan")


def test_a_tensor_of_another_size_than_in_the_index_is_refused(tmp_path: Path) -> None:
    spec, root = spec_of(), root_of(tmp_path)
    step = saved(tmp_path, titan_state(spec))
    metadata = read_metadata((step / ".metadata").read_bytes(), step)
    (file,) = step.glob("*.distcp")
    small = io.BytesIO()
    torch.save(torch.zeros(3), small)
    for index, place in metadata.storage_data.items():
        if index.fqn == "norm.weight":
            place.offset, place.length = file.stat().st_size, len(small.getvalue())
    with file.open("ab") as opened:
        opened.write(small.getvalue())
    metadata.storage_meta = None
    (step / ".metadata").write_bytes(pickle.dumps(metadata))
    with pytest.raises(CheckpointError, match=r"norm.weight holds torch.float32 \[3\], but"):
        convert(step, spec, to=root, name="torchtitan")


@pytest.mark.parametrize("kind", ["pipe", "device"])
@pytest.mark.parametrize("place", [".metadata", "data"])
def test_only_regular_files_are_read(tmp_path: Path, kind: str, place: str) -> None:
    spec, root = spec_of(), root_of(tmp_path)
    step = saved(tmp_path, titan_state(spec))
    path = step / ".metadata" if place == ".metadata" else next(step.glob("*.distcp"))
    path.unlink()
    if kind == "pipe":
        os.mkfifo(path)
    else:
        path.symlink_to("/dev/zero")
    with pytest.raises(CheckpointError, match=r"no regular file|names a file elsewhere"):
        convert(step, spec, to=root, name="torchtitan")


MALFORMED: dict[str, tuple[str, Any]] = {
    "the parent folder": ("relative_path", ".."),
    "the folder itself": ("relative_path", ""),
    "no name": ("relative_path", None),
    "an offset that is a text": ("offset", "x"),
}


@pytest.mark.parametrize("name", MALFORMED)
def test_a_malformed_index_is_refused(tmp_path: Path, name: str) -> None:
    spec, root = spec_of(), root_of(tmp_path)
    step = saved(tmp_path, titan_state(spec))
    metadata = read_metadata((step / ".metadata").read_bytes(), step)
    field, value = MALFORMED[name]
    setattr(next(iter(metadata.storage_data.values())), field, value)
    metadata.storage_meta = None
    (step / ".metadata").write_bytes(pickle.dumps(metadata))
    with pytest.raises(CheckpointError, match=r"it is malformed|no regular file"):
        convert(step, spec, to=root, name="torchtitan")
