"""Description of a checkpoint in its own folder: names, data state and manifest."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import datetime
from typing import Annotated, Any

from pydantic import AwareDatetime, Discriminator, Field, Tag

from trainyard.base.model_base import RecordModel, Text
from trainyard.protocol.event_kinds import EventData
from trainyard.protocol.record_parser import adapter
from trainyard.run.checkpoints.checkpoint_names import MANIFEST
from trainyard.run.checkpoints.program_manifest import ProgramManifest
from trainyard.run.limits import Cut
from trainyard.spec.job import JobSpec
from trainyard.spec.layout import Layout
from trainyard.spec.sections.model import ModelSection
from trainyard.training.data_stream import advanced

INDEX = "index.json"
"""Name of the index, which gives the location of each chunk of a tensor. The locations depend on
the sharding of the tensors, and on the ranks that write."""
DCP_METADATA = ".metadata"
"""Name of DCP's index; the only index in checkpoints of older versions."""

CheckpointId = Annotated[Text, Field(max_length=200)]
"""Id of a checkpoint in a record, as `<job>.a<attempt>.step-<n>`."""


class DataState(RecordModel):
    """Position of the job in its data; all ranks have the same position."""

    position: Annotated[int, Field(ge=0)] = 0
    """Index of the next sequence in the endless permuted stream."""
    consumed: Annotated[int, Field(ge=0)] = 0
    """Number of sequences trained on."""
    skipped: Annotated[tuple[tuple[int, int], ...], Field(strict=False)] = ()
    """Windows of positions (start, end) that were skipped on purpose."""
    dataset_digest: str
    """Digest of the files, the tokenizer, `seq_len`, the number of sequences, and the version of
    the data format. A resume with data of another digest is rejected."""


class TrainState(RecordModel):
    """Counters of a job after `step` completed optimizer steps."""

    step: Annotated[int, Field(ge=0)]
    """Completed optimizer steps."""
    tokens: Annotated[int, Field(ge=0)]
    """Number of tokens trained on."""
    data: DataState
    """Position in the data."""


class ManifestFile(RecordModel):
    """One file of a checkpoint."""

    path: str
    """Path of the file, relative to the checkpoint's folder."""
    size: Annotated[int, Field(ge=0, lt=2**62)]
    """Size of the file, in bytes."""
    xxh3_128: str
    """Checksum of the file's content, in hexadecimal."""


class ManifestWriter(RecordModel):
    """Data files that one rank wrote."""

    rank: Annotated[int, Field(ge=0)]
    """Global rank of the writer."""
    size: Annotated[int, Field(ge=0)]
    """Total size of the rank's data files, in bytes."""
    files: Annotated[int, Field(ge=0)]
    """Number of the rank's data files."""
    write_seconds: Annotated[float, Field(ge=0)]
    """Time in which the rank wrote its files, including shards received from other ranks."""


class SaveSettled(EventData):
    """Cost of a save for the training loop; known once the loop has noticed the end of the save."""

    checkpoint_id: CheckpointId
    """Checkpoint that the save wrote."""
    stall_seconds: Annotated[float, Field(ge=0, allow_inf_nan=False)]
    """Total time for which training waited for the save."""


class SaveFailed(EventData):
    """A save that failed for a transient reason; it is retried while training continues."""

    kind: str
    """Reason for the save: `interval`, `request`, `stop` or `final`."""
    message: Annotated[str, Cut(2_000)]
    """Description of the failure, with its rank, path and cause."""
    tries: Annotated[int, Field(ge=1)]
    """Number of failed saves since the last successful save."""
    failing_since: AwareDatetime
    """Time at which the first failure since the last successful save was noticed."""
    next_try_at: AwareDatetime
    """Time of the next try, which saves the step that is current at that time."""
    give_up_at: AwareDatetime
    """Time of the last try, set by `give_up_after_seconds`; if this try fails, the attempt ends."""
    saved_step: Annotated[int, Field(ge=0)]
    """Step of the last checkpoint; later steps are lost if the attempt ends now."""
    step: Annotated[int, Field(ge=0)]
    """Completed optimizer steps at the time of the failure."""


class Manifest(RecordModel):
    """`manifest.json` of a checkpoint: its contents, with checksums that prove that the checkpoint
    is complete."""

    format_version: int = 1
    """Version of this record."""
    checkpoint_id: str
    """Id of the checkpoint."""
    job_id: str
    """Id of the job that wrote the checkpoint."""
    attempt: int
    """Number of the attempt that wrote the checkpoint."""
    created_at: datetime
    """Time at which the manifest was written, in UTC."""
    train_state: TrainState
    """Counters of the job and its position in the data."""
    start: TrainState | None = None
    """Counters at the start of the attempt; absent in checkpoints of older versions."""
    layout: Layout
    """Layout of the attempt that wrote the checkpoint; any other layout may load it."""
    seed: int
    """Seed of the job. Seed and counters determine the whole random state."""
    spec_digest: str
    """Digest of the job's spec as submitted."""
    spec: JobSpec | None = None
    """Effective spec, with overrides and without `env`; absent in checkpoints of older versions."""
    code_digest: str | None = None
    """Digest of the files of `model.code`; absent without such files, and in checkpoints of older
    versions."""
    parent: CheckpointId | None
    """Id of the attempt's parent checkpoint; null for a fresh start."""
    kind: str
    """Reason for the save: `preflight`, `interval`, `request`, `stop` or `final`."""
    param_dtype: Annotated[Text, Field(max_length=16)]
    """Dtype of the stored weights."""
    model: ModelSection | None = None
    """Section `model` of the spec; absent in checkpoints of older versions."""
    seq_len: Annotated[int, Field(ge=1)] | None = None
    """Length of the training sequences, in tokens."""
    torch_version: str
    """Version of torch that wrote the checkpoint."""
    save_seconds: float
    """Time from the end of the step to the last byte of the data files."""
    files: tuple[ManifestFile, ...]
    """All data files and indexes."""
    writers: tuple[ManifestWriter, ...] = ()
    """Ranks that wrote tensors, ascending; empty in checkpoints of older versions."""

    @property
    def step(self) -> int:
        """Completed optimizer steps."""
        return self.train_state.step

    @property
    def disagreement(self) -> str | None:
        """Return the inconsistency between the counters; None if they are consistent.

        The position follows from the consumed sequences and the skipped windows. Steps, tokens and
        sequences are counted from the attempt's start. Their ratios before the start may differ,
        because the job that wrote a fork's checkpoint may have used other batch sizes.
        """
        state, data = self.train_state, self.train_state.data
        position = advanced(0, data.consumed, data.skipped)
        if data.position != position:
            return (
                f"position {data.position}, but {data.consumed} consumed sequences and "
                f"{len(data.skipped)} skipped windows lead to {position}"
            )
        if self.start is None or self.spec is None:
            return None
        steps = state.step - self.start.step
        sequences = self.start.data.consumed + steps * self.spec.training.global_batch_size
        tokens = self.start.tokens + steps * self.spec.tokens_per_step
        if steps < 0 or (data.consumed, state.tokens) != (sequences, tokens):
            return (
                f"step {state.step} with {data.consumed} sequences and {state.tokens} tokens, but "
                f"{steps} steps after the start there must be {sequences} and {tokens}"
            )
        return None

    @property
    def metadata_digest(self) -> str:
        """Checksum of the index.

        Resume points and the catalog identify the checkpoint by this checksum.

        Raises:
            ValueError: the manifest lists no index.
        """
        digests = {file.path: file.xxh3_128 for file in self.files}
        if self.index not in digests:
            raise ValueError(f"{MANIFEST} of {self.checkpoint_id} names no {INDEX}")
        return digests[self.index]

    @property
    def index(self) -> str:
        """Name of the file with the location of each tensor; `.metadata` in older versions."""
        listed = {file.path for file in self.files}
        return DCP_METADATA if DCP_METADATA in listed and INDEX not in listed else INDEX

    @property
    def data_files(self) -> tuple[ManifestFile, ...]:
        """Files with tensors."""
        return tuple(file for file in self.files if file.path not in (INDEX, DCP_METADATA))

    @property
    def size(self) -> int:
        """Total size of all files, in bytes."""
        return sum(file.size for file in self.files)

    @property
    def write_seconds(self) -> float | None:
        """Write time of the slowest writer; None in checkpoints of older versions."""
        return max((writer.write_seconds for writer in self.writers), default=None)


def _saved_by(manifest: object) -> str:
    """Return the writer of a manifest, `program` or `trainer`; the manifest may be a model or plain
    JSON values."""
    if isinstance(manifest, dict):
        return str(manifest.get("saved_by", "trainer"))
    return "program" if isinstance(manifest, ProgramManifest) else "trainer"


StoredManifest = Annotated[
    Annotated[Manifest, Tag("trainer")] | Annotated[ProgramManifest, Tag("program")],
    Discriminator(_saved_by),
]
"""Manifest of a committed checkpoint, written by the trainer or by a program."""


def parse_manifest(text: str | bytes) -> Manifest | ProgramManifest:
    """Parse a manifest from JSON text.

    Raises:
        ValueError: the text is not a manifest.
    """
    found: Manifest | ProgramManifest = adapter(StoredManifest).validate_json(text)
    return found


def manifest_of_event(data: Mapping[str, Any]) -> Manifest | ProgramManifest:
    """Parse the manifest in a line of `events.jsonl`, given as plain JSON values.

    The values are first converted to JSON text, because strict parsing of Python values rejects
    strings as values of enums.

    Raises:
        ValueError: the line has no valid manifest.
    """
    return parse_manifest(json.dumps(data))
