"""Self-description of a checkpoint: names, data state and manifest."""

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
"""Index that gives the location of each chunk: how tensors are divided, and which ranks write."""
DCP_METADATA = ".metadata"
"""Index for DCP; the only index in checkpoints of older versions."""

CheckpointId = Annotated[Text, Field(max_length=200)]
"""Id of a checkpoint in a record: `<job>.a<attempt>.step-<n>`."""


class DataState(RecordModel):
    """Position of the job in its data; no field depends on a rank."""

    position: Annotated[int, Field(ge=0)] = 0
    """Index of the next sequence in the endless permuted stream."""
    consumed: Annotated[int, Field(ge=0)] = 0
    """Number of sequences trained on."""
    skipped: Annotated[tuple[tuple[int, int], ...], Field(strict=False)] = ()
    """Windows of positions (start, end) that were skipped on purpose."""
    dataset_digest: str
    """Digest of files, tokenizer, `seq_len`, count and format version; a resume with another
    digest is rejected."""


class TrainState(RecordModel):
    """The counters of a job after `step` optimizer steps."""

    step: Annotated[int, Field(ge=0)]
    """Completed optimizer steps."""
    tokens: Annotated[int, Field(ge=0)]
    """Tokens trained on."""
    data: DataState
    """Position in the data."""


class ManifestFile(RecordModel):
    """One file of a checkpoint."""

    path: str
    """Relative to the checkpoint's folder."""
    size: Annotated[int, Field(ge=0, lt=2**62)]
    """Bytes."""
    xxh3_128: str
    """Checksum of its content, in hexadecimal."""


class ManifestWriter(RecordModel):
    """The share of the tensors that one rank wrote."""

    rank: Annotated[int, Field(ge=0)]
    """Global rank."""
    size: Annotated[int, Field(ge=0)]
    """Bytes of its files."""
    files: Annotated[int, Field(ge=0)]
    """Data files that it wrote."""
    write_seconds: Annotated[float, Field(ge=0)]
    """Time to write them, including shards received from other ranks."""


class SaveSettled(EventData):
    """Cost of a save for the training loop, known once the loop has seen that it ended."""

    checkpoint_id: CheckpointId
    """Checkpoint that the save wrote."""
    stall_seconds: Annotated[float, Field(ge=0, allow_inf_nan=False)]
    """Total time for which training waited for the save."""


class SaveFailed(EventData):
    """A save that failed for a transient reason: it is retried, and training continues."""

    kind: str
    """Reason for the save: `interval`, `request`, `stop` or `final`."""
    message: Annotated[str, Cut(2_000)]
    """The failure, with rank, path and cause."""
    tries: Annotated[int, Field(ge=1)]
    """Failed saves since the last successful one."""
    failing_since: AwareDatetime
    """When the first of these failures was noted."""
    next_try_at: AwareDatetime
    """When the next try is due; it saves the step that is current then."""
    give_up_at: AwareDatetime
    """When the last try is due; if it fails, the attempt ends (`give_up_after_seconds`)."""
    saved_step: Annotated[int, Field(ge=0)]
    """Step of the last checkpoint; later steps are lost if the attempt ends now."""
    step: Annotated[int, Field(ge=0)]
    """Completed optimizer steps at the time of the failure."""


class Manifest(RecordModel):
    """`manifest.json` of a checkpoint: its contents, and the checksums that prove it complete."""

    format_version: int = 1
    """Version of this record."""
    checkpoint_id: str
    """Id of the checkpoint."""
    job_id: str
    """Job that wrote it."""
    attempt: int
    """Attempt that wrote it."""
    created_at: datetime
    """When the manifest was written, in UTC."""
    train_state: TrainState
    """Counters and data position."""
    start: TrainState | None = None
    """Counters at the start of the attempt; absent in checkpoints of older versions."""
    layout: Layout
    """Layout that wrote it; any other layout may load it."""
    seed: int
    """Seed of the job; seed and counters are the complete random state."""
    spec_digest: str
    """Digest of the job's spec as submitted."""
    spec: JobSpec | None = None
    """The effective spec, including overrides, without `env`; absent in checkpoints of older
    versions."""
    code_digest: str | None = None
    """Digest of the files of `model.code`; absent without them, and in checkpoints of older
    versions."""
    parent: CheckpointId | None
    """Parent checkpoint of the attempt."""
    kind: str
    """Reason for the save: `preflight`, `interval`, `request`, `stop` or `final`."""
    param_dtype: Annotated[Text, Field(max_length=16)]
    """Type of the stored weights."""
    model: ModelSection | None = None
    """Section `model` of the spec; absent in checkpoints of older versions."""
    seq_len: Annotated[int, Field(ge=1)] | None = None
    """Length in tokens of the training sequences."""
    torch_version: str
    """Version of torch that wrote it."""
    save_seconds: float
    """Time from the end of the step to the last byte of the data files."""
    files: tuple[ManifestFile, ...]
    """Every data file and the indexes."""
    writers: tuple[ManifestWriter, ...] = ()
    """The ranks that wrote tensors, in order; empty in checkpoints of older versions."""

    @property
    def step(self) -> int:
        """Completed optimizer steps."""
        return self.train_state.step

    @property
    def disagreement(self) -> str | None:
        """Return the inconsistency between the counters, or None if they agree.

        The position follows from the consumed sequences and the skipped windows. Steps, tokens
        and sequences are compared from the attempt's start: a fork may start with other ratios.
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
        """Checksum of the index; it identifies the content in resume points and catalog.

        Raises:
            ValueError: the manifest lists no index.
        """
        digests = {file.path: file.xxh3_128 for file in self.files}
        if self.index not in digests:
            raise ValueError(f"{MANIFEST} of {self.checkpoint_id} names no {INDEX}")
        return digests[self.index]

    @property
    def index(self) -> str:
        """File that gives the location of each tensor; `.metadata` in older versions."""
        listed = {file.path for file in self.files}
        return DCP_METADATA if DCP_METADATA in listed and INDEX not in listed else INDEX

    @property
    def data_files(self) -> tuple[ManifestFile, ...]:
        """The files of the tensors."""
        return tuple(file for file in self.files if file.path not in (INDEX, DCP_METADATA))

    @property
    def size(self) -> int:
        """Bytes of all its files."""
        return sum(file.size for file in self.files)

    @property
    def write_seconds(self) -> float | None:
        """Time of the slowest writer; None in checkpoints of older versions."""
        return max((writer.write_seconds for writer in self.writers), default=None)


def _saved_by(manifest: object) -> str:
    """Return the tag of a manifest, parsed or not; a manifest without one is the trainer's."""
    if isinstance(manifest, dict):
        return str(manifest.get("saved_by", "trainer"))
    return "program" if isinstance(manifest, ProgramManifest) else "trainer"


StoredManifest = Annotated[
    Annotated[Manifest, Tag("trainer")] | Annotated[ProgramManifest, Tag("program")],
    Discriminator(_saved_by),
]
"""The manifest of any committed checkpoint."""


def parse_manifest(text: str | bytes) -> Manifest | ProgramManifest:
    """Parse a manifest from JSON text.

    Raises:
        ValueError: the text is not a manifest.
    """
    found: Manifest | ProgramManifest = adapter(StoredManifest).validate_json(text)
    return found


def manifest_of_event(data: Mapping[str, Any]) -> Manifest | ProgramManifest:
    """Parse the manifest in a line of `events.jsonl`, given as plain JSON values.

    The values are converted to JSON text first: parsing from Python values is strict, and would
    reject the strings of enums.

    Raises:
        ValueError: the line has no valid manifest.
    """
    return parse_manifest(json.dumps(data))
