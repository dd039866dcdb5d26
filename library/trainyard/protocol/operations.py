"""Operations: background work on nodes, as exchanged by server, worker and trainer.

```
<data>/operations/<id>/<fence>/    new folder for each claim; its files are readable text
  task.json       OperationTask, with the paths of the storage roots on this node
  progress.json   OperationProgress; the command replaces it at each report
  outcome.json    OperationOutcome; the last file that the command writes
```
"""

from __future__ import annotations

from datetime import datetime
from enum import StrEnum
from typing import Annotated, Literal

from pydantic import Field

from trainyard.base.model_base import RecordModel, Seed, SpecModel, Text
from trainyard.base.names import NAME
from trainyard.protocol.attempt import ResumePoint
from trainyard.run.checkpoint_faults import CheckpointFault
from trainyard.run.limits import Cut, ShortText
from trainyard.spec.job import JobSpec
from trainyard.spec.storage_uri import Place, RootName, split_place

TASK, PROGRESS, OUTCOME = "task.json", "progress.json", "outcome.json"

MAX_TRIES = 3
"""Maximum number of claims of an operation. If the lease of the last claim expires too, the
operation fails; an operation of a kind in `REPEATED` is queued again after a pause instead."""


class OperationKind(StrEnum):
    """Kind of an operation."""

    VERIFY = "verify"
    """Compare every file with its checksum, then load every tensor."""
    SCRUB = "scrub"
    """Compare every file with its checksum."""
    DELETE = "delete"
    """Remove checkpoints from storage; the marker of each checkpoint is removed first."""
    EXPORT = "export"
    """Write the weights in Hugging Face's format."""
    SAMPLE = "sample"
    """Generate text from a prompt."""
    RECOVER = "recover"
    """Fence off a lost attempt, and find commits that it did not report."""
    BUILD = "build"
    """Install the packages in the lock file of a program."""
    AUTO_EXPORT = "auto_export"
    """Write a checkpoint in the format of `checkpoint.export`, into the checkpoint's folder."""


LOOKS = frozenset(
    {
        OperationKind.VERIFY,
        OperationKind.SCRUB,
        OperationKind.RECOVER,
        OperationKind.AUTO_EXPORT,
    }
)
"""Kinds of operations without a result outside of the checkpoint's folder; a deletion of the
checkpoint cancels them."""
USES = frozenset({OperationKind.EXPORT, OperationKind.SAMPLE})
"""Kinds of operations with a result for a person; the checkpoint is kept until the operation has
ended."""

REPEATED = frozenset({OperationKind.DELETE, OperationKind.SCRUB, OperationKind.RECOVER})
"""Kinds of operations that no person waits for, or that cannot be undone. A failed operation of
these kinds is queued again until it succeeds or is cancelled. A failed automatic export is queued
again until its third try (`MAX_TRIES`). An operation of another kind ends with its first failure,
which a person or a job then sees."""

EXPORTS = "exports"
"""Name of the folder for exports in a storage root."""
HUGGING_FACE = "hugging_face"
"""Name of the folder for an automatic export in the folder of a checkpoint."""
SHARD_GIB = 4.0
MAX_RECOVERED_BYTES = 512 * 1024
"""Maximum total size of the manifests in one report of a search, in bytes."""
SAMPLE_SECONDS = 120.0
"""Time limit of a sample; at this limit the sample ends with the text generated so far."""

WeightsType = Literal["float32", "bfloat16", "float16"]
ExportFormat = Literal["dcp", "safetensors"]
ExportName = Annotated[str, Field(pattern=NAME, max_length=150)]
ShardGib = Annotated[float, Field(ge=0.01, le=1000, json_schema_extra={"unit": "GiB"})]


class Verification(RecordModel):
    """Result of the last verification or scrub of a checkpoint."""

    ok: bool
    """Whether the checkpoint is complete and undamaged."""
    at: datetime
    """Time of the result."""
    loaded_at: datetime | None = None
    """Time at which all tensors were last loaded; absent if only checksums were compared."""
    loaded_on: int | None = None
    """Number of ranks that loaded the tensors."""
    tensors: int | None = None
    """Number of loaded tensors."""
    fault: CheckpointFault | None = None
    """Kind of the fault that was found."""
    message: ShortText | None = None
    """Description of the fault, as a sentence."""


Prompt = Annotated[Text, Field(max_length=4000)]
DrawnTokens = Annotated[int, Field(ge=1, le=1000, json_schema_extra={"unit": "tokens"})]
Temperature = Annotated[float, Field(ge=0, le=10)]


class ExportTask(SpecModel):
    """An export of a checkpoint's weights: format and target."""

    root: RootName
    """Storage root of the target."""
    name: ExportName
    """Name of the target folder, in `exports` below the storage root."""
    dtype: WeightsType
    """Dtype of the written weights."""
    shard_gib: ShardGib = SHARD_GIB
    """Maximum total size of the tensors in one file; a larger tensor gets a file of its own."""
    tokenizer: Place | None = None
    """Hugging Face tokenizer to export with the weights; absent if the job uses the byte
    tokenizer."""
    hugging_face: Place | None = None
    """Folder of a hub model; the export copies and completes the model's config. Absent for a
    family."""

    @property
    def place(self) -> str:
        """Return the target as `<root>:<relative path>`."""
        return f"{self.root}:{EXPORTS}/{self.name}"


class AutoExportTask(SpecModel):
    """An automatic export into the folder of the checkpoint (docs/bridges.md)."""

    format: ExportFormat
    """Format of the export."""
    tokenizer: Place | None = None
    """Hugging Face tokenizer to export with the weights; absent if the job uses the byte
    tokenizer."""
    hugging_face: Place | None = None
    """Folder of a hub model; absent for a family."""


class ExportResult(RecordModel):
    """Result of an export."""

    format: ExportFormat = "safetensors"
    """Format of the export."""
    place: str
    """Folder of the export, as `<root>:<relative path>`."""
    path: str
    """Folder of the export, as a path on the node."""
    dtype: WeightsType
    """Dtype of the written weights."""
    files: int
    """Number of files of the export; for `dcp`, only `.metadata` is counted."""
    size: int
    """Total size of these files, in bytes."""


class SampleTask(SpecModel):
    """Parameters of text generation."""

    spec: JobSpec
    """Spec of the job without `env`; it defines the model and the tokenizer."""
    prompt: Prompt
    """Text that the model continues."""
    max_tokens: DrawnTokens
    """Maximum number of tokens to generate."""
    temperature: Temperature
    """Sampling temperature, which divides the logits; 0 always selects the likeliest token."""
    seed: Seed
    """Seed for sampling."""


class SampleEnd(StrEnum):
    """Reason why a sample ended."""

    END_OF_TEXT = "end_of_text"
    """The model generated the end of the text."""
    MAX_TOKENS = "max_tokens"
    """The requested number of tokens was generated."""
    TIME = "time"
    """The sample reached its time limit."""


class SampleResult(RecordModel):
    """A generated text."""

    text: Annotated[str, Cut(200_000)]
    """Prompt, followed by the generated text."""
    tokens: int
    """Number of generated tokens."""
    ended: SampleEnd
    """Reason why the sample ended."""


class RecoverTask(SpecModel):
    """A search for the commits of a lost attempt."""

    attempt: Annotated[int, Field(ge=1)]
    """Number of the attempt."""
    fence: Annotated[int, Field(ge=1)]
    """New value of the storage's fence: the number of the next attempt. The fence is raised before
    the search."""
    after_step: Annotated[int, Field(ge=-1)]
    """Step of the attempt's newest checkpoint in the catalog; -1 if the catalog has none."""


EnvironmentDigest = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
"""SHA-256 over all inputs of an environment."""


class BuildTask(SpecModel):
    """A request to build an environment."""

    digest: EnvironmentDigest
    """Digest of the environment. The request, and its folder in `environments` below the storage
    root, are named after this digest."""


class OperationTask(RecordModel):
    """Input of an operation, as its node receives it."""

    kind: OperationKind
    """Kind of the operation."""
    job_id: str
    """Id of the job that wrote the checkpoints."""
    root: str
    """Name of the storage root."""
    paths: tuple[str, ...]
    """Folders of the checkpoints, relative to the storage root."""
    whole_job: bool = False
    """Whether to delete the job's whole folder, not only the folders in `paths`."""
    checkpoint: ResumePoint | None = None
    """Checkpoint to read, with the expected digest of its metadata."""
    export: ExportTask | None = None
    """Parameters of an export."""
    auto_export: AutoExportTask | None = None
    """Parameters of an automatic export."""
    sample: SampleTask | None = None
    """Parameters of a sample."""
    recover: RecoverTask | None = None
    """Parameters of a search for commits."""
    build: BuildTask | None = None
    """Parameters of a build."""

    @property
    def other_roots(self) -> frozenset[str]:
        """Storage roots that the node must see in addition to `root`."""
        places: list[str | None] = []
        if self.export is not None:
            places += [self.export.place, self.export.tokenizer, self.export.hugging_face]
        if self.auto_export is not None:
            places += [self.auto_export.tokenizer, self.auto_export.hugging_face]
        if self.sample is not None:
            spec = self.sample.spec
            places += [spec.data.tokenizer_path, spec.model.code, spec.model.hugging_face]
        return frozenset(split_place(place)[0] for place in places if place) - {self.root}


class OperationOrder(RecordModel):
    """`task.json`: an operation, with paths on its node."""

    task: OperationTask
    """Input of the operation."""
    root_path: str
    """Folder or URL of the task's storage root, as seen from this node."""
    root_id: str | None = None
    """Required UUID of the task's storage root; when absent, any UUID is accepted."""
    roots: dict[str, str] = Field(default_factory=dict)
    """Path on this node of each storage root, by name."""


class OperationProgress(RecordModel):
    """Progress of an operation."""

    doing: Annotated[str, Cut(200)]
    """Current activity, in a few words."""
    done: Annotated[int, Field(ge=0, lt=2**62)]
    """Amount of work done: bytes read and written, generated tokens, deleted files, or steps of a
    build."""
    total: Annotated[int, Field(ge=0, lt=2**62)]
    """Total to reach, in the unit of `done`."""


class FailedTries(RecordModel):
    """Consecutive failures of a repeated operation."""

    count: Annotated[int, Field(ge=1)]
    """Number of consecutive failures."""
    since: datetime
    """Time of the first of these failures."""
    reason: ShortText
    """Reason of the last failure."""
    next_at: datetime | None
    """Earliest time of the next try; absent if the operation may be tried now."""


class OperationOutcome(RecordModel):
    """`outcome.json`: result of an operation on its node."""

    outcome: Literal["succeeded", "failed"]
    """Whether the operation did its work; a verification that finds damage has succeeded."""
    message: ShortText
    """Result as text, or reason of the failure."""
    verification: Verification | None = None
    """Result of a verification or scrub."""
    files: Annotated[int, Field(ge=0, lt=2**62)] = 0
    """Number of deleted files."""
    export: ExportResult | None = None
    """Result of an export."""
    sample: SampleResult | None = None
    """Result of a sample."""
    commits: tuple[str, ...] = ()
    """Manifests of the commits that a search found, as JSON text, newest first."""
