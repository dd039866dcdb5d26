"""Every rank refuses a damaged or planted checkpoint, names the file, and runs no code of it."""

import json
import os
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from torch.distributed.checkpoint.metadata import BytesStorageMetadata, TensorStorageMetadata

from tests.trainer.checkpoint.toy import (
    JOB,
    Refusal,
    build,
    load,
    refusal,
    resume_point,
    save_trained,
)
from tests.trainer.commits import commit_again, make_older, write_manifest, write_marker
from tests.trainer.ranks import run_ranks
from trainer.checkpoint.manifest import read_manifest
from trainer.checkpoint.reader.metadata import read_metadata
from trainer.errors import RunError
from trainyard.protocol.attempt import ResumePoint
from trainyard.protocol.manifest import DCP_METADATA, INDEX
from trainyard.run.checkpoints.checkpoint_names import COMMITTED, MANIFEST, checkpoint_id
from trainyard.spec.layout import Layout

LAYOUT = Layout(dp_shard=2)
DATA = "__0_0.distcp"


class Planted:
    """Creates a file when a trusting unpickler loads it."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return os.system, (f"touch {self.path}",)


def _flip_a_bit(folder: Path) -> None:
    content = bytearray((folder / DATA).read_bytes())
    content[len(content) // 2] ^= 4
    (folder / DATA).write_bytes(content)


def _flip_a_bit_of_a_header(folder: Path) -> None:
    content = bytearray((folder / DATA).read_bytes())
    content[content.index(b"data.pkl") + 1] ^= 4  # in the name that torch.load looks for
    (folder / DATA).write_bytes(content)


def _link_data_outside(folder: Path) -> None:
    root = folder.parents[2]
    outside = (folder / DATA).rename(root.with_name(f"outside-{root.name}"))
    (folder / DATA).symlink_to(outside)


def _link_marker_outside(folder: Path) -> None:
    root = folder.parents[2]
    outside = (folder / COMMITTED).rename(root.with_name(f"outside-{root.name}"))
    (folder / COMMITTED).symlink_to(outside)


def _link_data_inside(folder: Path) -> None:
    inside = (folder / DATA).rename(folder.parents[2] / "inside")
    (folder / DATA).symlink_to(inside)


def _truncate(folder: Path) -> None:
    os.truncate(folder / DATA, (folder / DATA).stat().st_size - 1)


def _remove_data(folder: Path) -> None:
    (folder / DATA).unlink()


def _remove_marker(folder: Path) -> None:
    (folder / COMMITTED).unlink()


def _remove_all(folder: Path) -> None:
    for file in folder.iterdir():
        file.unlink()
    folder.rmdir()


def _change_manifest(folder: Path) -> None:
    text = (folder / MANIFEST).read_text()
    (folder / MANIFEST).write_text(text.replace('"seed": 0', '"seed": 1'))


def _commit_no_manifest(folder: Path) -> None:
    (folder / MANIFEST).write_text("[]")
    write_marker(folder)


def _commit_file_elsewhere(folder: Path) -> None:
    manifest = read_manifest(folder)
    elsewhere = manifest.files[0].model_copy(update={"path": "../../../other"})
    write_manifest(folder, manifest.model_copy(update={"files": (elsewhere,)}))
    write_marker(folder)


def _take_manifest_of_another_attempt(folder: Path) -> None:
    other = {"attempt": 2, "checkpoint_id": checkpoint_id(JOB, 2, 2)}
    write_manifest(folder, read_manifest(folder).model_copy(update=other))
    write_marker(folder)


def _plant_metadata(folder: Path) -> None:
    (folder / DCP_METADATA).write_bytes(pickle.dumps(Planted(folder.parent / "ran")))


def _plant_and_commit_metadata(folder: Path) -> None:
    _plant_metadata(folder)
    commit_again(folder)


def _plant_bytes(folder: Path) -> None:
    """Declare a weight to be an object: DCP would unpickle it from the data file."""
    path = folder / DCP_METADATA
    metadata = read_metadata(path.read_bytes(), path)
    metadata.state_dict_metadata["model.norm.bias"] = BytesStorageMetadata()
    path.write_bytes(pickle.dumps(metadata))
    (folder / DATA).write_bytes(pickle.dumps(Planted(folder.parent / "ran")))
    commit_again(folder)


def _point_elsewhere(folder: Path) -> None:
    path = folder / DCP_METADATA
    metadata = read_metadata(path.read_bytes(), path)
    next(iter(metadata.storage_data.values())).relative_path = "../step-1/__0_0.distcp"
    path.write_bytes(pickle.dumps(metadata))
    commit_again(folder)


def _cover_rows_twice(folder: Path) -> None:
    """Put the second rank's rows at the place of the first's: equal elements, and a hole."""
    path = folder / DCP_METADATA
    metadata = read_metadata(path.read_bytes(), path)
    stored = metadata.state_dict_metadata["model.norm.weight"]
    assert isinstance(stored, TensorStorageMetadata)
    chunks = stored.chunks
    first, second = sorted(chunks, key=lambda chunk: chunk.sizes, reverse=True)
    second.sizes = first.sizes
    second.offsets = first.offsets
    path.write_bytes(pickle.dumps(metadata))
    commit_again(folder)


def _commit_another_position(folder: Path) -> None:
    manifest = read_manifest(folder)
    data = manifest.train_state.data.model_copy(update={"position": 5})
    state = manifest.train_state.model_copy(update={"data": data})
    write_manifest(folder, manifest.model_copy(update={"train_state": state}))
    write_marker(folder)


def _flip_a_bit_of_the_index(folder: Path) -> None:
    content = bytearray((folder / INDEX).read_bytes())
    content[len(content) // 2] ^= 4
    (folder / INDEX).write_bytes(content)


def _tear_the_index(folder: Path) -> None:
    content = (folder / INDEX).read_bytes()
    (folder / INDEX).write_bytes(content[: len(content) // 2])
    commit_again(folder)


def _index_longer_chunks(folder: Path) -> None:
    """Declare more bytes than the chunks have: later chunks would be read at other places."""
    record = json.loads((folder / INDEX).read_text())
    for kind in record["kinds"]:
        kind["overheads"] = [(sizes, bytes_ + 64) for sizes, bytes_ in kind["overheads"]]
    (folder / INDEX).write_text(json.dumps(record))
    commit_again(folder)


def _forget_a_file(folder: Path) -> None:
    (folder / DATA).unlink()
    commit_again(folder)


# The damage, whether the catalog has the planted digest too, the text of the error, and the file
# that it names. With a planted digest only the unpickler rejects the metadata.
CASES: list[tuple[Callable[[Path], None], bool, str, str]] = [
    (_flip_a_bit, False, "is damaged", DATA),
    (_flip_a_bit_of_a_header, False, "is damaged: its checksum is", DATA),
    (_link_data_outside, False, "leads through a symbolic link", DATA),
    (_link_marker_outside, False, "leads through a symbolic link", COMMITTED),
    (_commit_another_position, False, "position 5, but 0 consumed sequences", MANIFEST),
    (_cover_rows_twice, True, "model.norm.weight has 5 elements, but two of its", DCP_METADATA),
    (_truncate, False, "bytes instead of", DATA),
    (_remove_data, False, "No such file", DATA),
    (_remove_marker, False, "COMMITTED is missing", COMMITTED),
    (_remove_all, False, "COMMITTED is missing", COMMITTED),
    (_change_manifest, False, "was changed", MANIFEST),
    (_commit_no_manifest, False, "is no manifest", MANIFEST),
    (_commit_file_elsewhere, False, "names a file elsewhere", MANIFEST),
    (_take_manifest_of_another_attempt, False, "another checkpoint: its id is toy.a2.step-2", ""),
    (_flip_a_bit_of_the_index, False, "is another file than the one that was committed", INDEX),
    (_tear_the_index, False, "another checkpoint: its metadata digest", ""),
    (_tear_the_index, True, "is refused: : Invalid JSON", INDEX),
    (_index_longer_chunks, True, "names a place that is not there", INDEX),
    (_forget_a_file, True, "names a place that is not there", INDEX),
    (_plant_metadata, False, "bytes instead of", DCP_METADATA),
    (_plant_and_commit_metadata, False, "another checkpoint: its metadata digest", ""),
    (_plant_and_commit_metadata, True, "names posix.system", DCP_METADATA),
    (_plant_bytes, True, "model.norm.bias is no tensor there and float32 (5,) here", DCP_METADATA),
    (_point_elsewhere, True, "names a place that is not there", DCP_METADATA),
]


OF_OLDER_VERSIONS = (
    _cover_rows_twice,
    _plant_metadata,
    _plant_and_commit_metadata,
    _plant_bytes,
    _point_elsewhere,
)
"""Damages of `.metadata`, which is read without another index."""


def _load_all(resumes: list[tuple[Path, ResumePoint]]) -> list[Refusal | None]:
    answers: list[Refusal | None] = []
    for root, resume in resumes:
        model, optimizer = build(LAYOUT, seed=2)
        try:
            load(root, LAYOUT, model=model, optimizer=optimizer, resume=resume)
            answers.append(None)
        except RunError as error:
            answers.append(refusal(error))
    return answers


def test_every_damage_is_refused_on_every_rank(tmp_path: Path) -> None:
    resumes = []
    for number, (damage, catalog_fooled, *_) in enumerate(CASES):
        root = tmp_path / str(number)
        if number == 0:
            run_ranks(2, save_trained, root, LAYOUT, 2)
        else:
            _copy(tmp_path / "clean", root)
        folder = root / JOB / "a1" / "step-2"
        if number == 0:
            _copy(root, tmp_path / "clean")
        if damage in OF_OLDER_VERSIONS:
            make_older(folder)
        resume = resume_point(read_manifest(folder))
        damage(folder)
        resumes.append((root, resume_point(read_manifest(folder)) if catalog_fooled else resume))
    clean = tmp_path / "clean"
    resumes.append((clean, resume_point(read_manifest(clean / JOB / "a1" / "step-2"))))
    _copy(clean, linked := tmp_path / "linked")
    _link_data_inside(linked / JOB / "a1" / "step-2")
    resumes.append((linked, resumes[-1][1]))
    _copy(clean, older := tmp_path / "older")
    resumes.append((older, resume_point(make_older(older / JOB / "a1" / "step-2"))))

    for rank, answers in enumerate(run_ranks(2, _load_all, resumes)):
        *refused, undamaged, linked_inside, of_older_version = answers
        assert undamaged is linked_inside is of_older_version is None
        for (damage, _, text, file), answer, (root, _) in zip(
            CASES, refused, resumes[:-3], strict=True
        ):
            case = (rank, damage.__name__, answer)
            assert answer is not None, case
            wanted = "MismatchError" if damage is _plant_bytes else "CheckpointError"
            assert answer[0] == wanted, case
            assert text in answer[1], case
            assert answer[2] == str(root / JOB / "a1" / "step-2" / file).rstrip("/"), case
    assert not list(tmp_path.rglob("ran"))


def _copy(source: Path, target: Path) -> None:
    for file in source.rglob("*"):
        if file.is_file():
            copied = target / file.relative_to(source)
            copied.parent.mkdir(parents=True, exist_ok=True)
            copied.write_bytes(file.read_bytes())


def _load_wider(root: Path, resume: ResumePoint) -> Refusal:
    model, optimizer = build(LAYOUT, seed=2, width=8)
    with pytest.raises(RunError) as caught:
        load(root, LAYOUT, model=model, optimizer=optimizer, resume=resume)
    return refusal(caught.value)


def test_a_checkpoint_of_another_model_or_place_is_refused(tmp_path: Path) -> None:
    manifest, _ = run_ranks(2, save_trained, tmp_path / "inner", LAYOUT, 2)[0]
    resume = resume_point(manifest)
    for kind, text, *_ in run_ranks(2, _load_wider, tmp_path / "inner", resume):
        assert kind == "MismatchError"
        assert "model.layers.0.weight is float32 (5, 7) there and float32 (5, 8) here" in text
    outside = resume.model_copy(update={"path": f"../inner/{resume.path}"})
    (tmp_path / "other").mkdir()
    for answers in run_ranks(2, _load_all, [(tmp_path / "other", outside)]):
        assert answers[0] is not None
        assert "outside the storage root" in answers[0][1]
