"""Operations: background work on nodes, as server, worker and trainer exchange it.

```
<data>/operations/<id>/<fence>/    fresh for each claim; can be read with cat
  task.json       the OperationTask and the paths of the roots here
  progress.json   the OperationProgress; written by the command, replaced with each report
  outcome.json    the OperationOutcome; written last
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
"""Claims with an expired lease after which an operation has failed."""


class OperationKind(StrEnum):
    """Kind of work."""

    VERIFY = "verify"
    """Compare every file with its checksum, then load every tensor."""
    SCRUB = "scrub"
    """Compare every file with its checksum."""
    DELETE = "delete"
    """Remove checkpoints from storage, the marker first."""
    EXPORT = "export"
    """Write the weights in Hugging Face's format."""
    SAMPLE = "sample"
    """Generate text from a prompt."""
    RECOVER = "recover"
    """Fence off a lost attempt and find its unreported commits."""
    BUILD = "build"
    """Install the packages of a lock, for programs."""


LOOKS = frozenset({OperationKind.VERIFY, OperationKind.SCRUB, OperationKind.RECOVER})
"""Kinds that only read a checkpoint; its deletion cancels them."""
USES = frozenset({OperationKind.EXPORT, OperationKind.SAMPLE})
"""Kinds with a result for a person; the checkpoint is kept until they have ended."""

REPEATED = frozenset({OperationKind.DELETE, OperationKind.SCRUB, OperationKind.RECOVER})
"""Kinds that no person waits for, or that cannot be undone. A failed operation of these kinds is
queued again until it succeeds or is cancelled; other kinds end with their failure, which a person
or a job sees."""

EXPORTS = "exports"
"""Folder for exports in a storage root."""
SHARD_GIB = 4.0
MAX_RECOVERED_BYTES = 512 * 1024
"""Most bytes of manifests in one report of a search."""
SAMPLE_SECONDS = 120.0
"""Time after which a sample ends with the text so far."""

WeightsType = Literal["float32", "bfloat16", "float16"]
ExportName = Annotated[str, Field(pattern=NAME, max_length=150)]
ShardGib = Annotated[float, Field(ge=0.01, le=1000, json_schema_extra={"unit": "GiB"})]


class Verification(RecordModel):
    """Result of the last verification or scrub of a checkpoint."""

    ok: bool
    """Whether it is complete and undamaged."""
    at: datetime
    """Time of the result."""
    loaded_at: datetime | None = None
    """When all of its tensors were last loaded; absent if only checksums were compared."""
    loaded_on: int | None = None
    """Number of ranks that loaded them."""
    tensors: int | None = None
    """Number of loaded tensors."""
    fault: CheckpointFault | None = None
    """Kind of the fault."""
    message: ShortText | None = None
    """The fault as a sentence."""


Prompt = Annotated[Text, Field(max_length=4000)]
DrawnTokens = Annotated[int, Field(ge=1, le=1000, json_schema_extra={"unit": "tokens"})]
Temperature = Annotated[float, Field(ge=0, le=10)]


class ExportTask(SpecModel):
    """An export of a checkpoint's weights: format and target."""

    root: RootName
    """Storage root of the target."""
    name: ExportName
    """Its folder, in `exports` below that root."""
    dtype: WeightsType
    """Type of the written weights."""
    shard_gib: ShardGib = SHARD_GIB
    """Largest total size of the tensors in one file; a larger tensor has its own file."""
    tokenizer: Place | None = None
    """Hugging Face tokenizer to export with the weights; absent for the byte tokenizer."""

    @property
    def place(self) -> str:
        """Return the target as `<root>:<relative path>`."""
        return f"{self.root}:{EXPORTS}/{self.name}"


class ExportResult(RecordModel):
    """Result of an export."""

    place: str
    """Its folder, as `<root>:<relative path>`."""
    path: str
    """The same folder as a path on the node."""
    dtype: WeightsType
    """Type of the weights."""
    files: int
    """Files in the folder."""
    size: int
    """Bytes of all of them."""


class SampleTask(SpecModel):
    """Parameters of text generation."""

    spec: JobSpec
    """Spec of the job, without its environment, for model and tokenizer."""
    prompt: Prompt
    """The prompt."""
    max_tokens: DrawnTokens
    """Largest number of tokens to generate."""
    temperature: Temperature
    """Divides the logits; 0 selects the likeliest token each time."""
    seed: Seed
    """Seed of the sampling."""


class SampleEnd(StrEnum):
    """Why a sample ended."""

    END_OF_TEXT = "end_of_text"
    """The model ended the text."""
    MAX_TOKENS = "max_tokens"
    """The requested number of tokens was generated."""
    TIME = "time"
    """It exceeded its time limit."""


class SampleResult(RecordModel):
    """A generated text."""

    text: Annotated[str, Cut(200_000)]
    """The prompt and its continuation by the model."""
    tokens: int
    """Number of generated tokens."""
    ended: SampleEnd
    """Why it ended."""


class RecoverTask(SpecModel):
    """A search for the commits of a lost attempt."""

    attempt: Annotated[int, Field(ge=1)]
    """Number of the attempt."""
    fence: Annotated[int, Field(ge=1)]
    """New value of the storage's fence, raised first: the number of the next attempt."""
    after_step: Annotated[int, Field(ge=-1)]
    """The attempt's newest step in the catalog; -1 without one."""


EnvironmentDigest = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
"""SHA-256 of all inputs of an environment."""


class BuildTask(SpecModel):
    """An environment to build."""

    digest: EnvironmentDigest
    """Name of its request and of its folder, in `environments` of the storage root."""


class OperationTask(RecordModel):
    """Input of a node to execute an operation."""

    kind: OperationKind
    """What to do."""
    job_id: str
    """Job of the checkpoints."""
    root: str
    """Storage root."""
    paths: tuple[str, ...]
    """Folders of the checkpoints, relative to the root."""
    whole_job: bool = False
    """Whether the rest of the job's folder is deleted too."""
    checkpoint: ResumePoint | None = None
    """The checkpoint to read, with the expected digest of its metadata."""
    export: ExportTask | None = None
    """Parameters of an export."""
    sample: SampleTask | None = None
    """Parameters of a sample."""
    recover: RecoverTask | None = None
    """Parameters of a search for commits."""
    build: BuildTask | None = None
    """Parameters of a build."""

    @property
    def other_roots(self) -> frozenset[str]:
        """Return the storage roots that the node must see in addition to `root`."""
        places: list[str | None] = []
        if self.export is not None:
            places += [self.export.place, self.export.tokenizer]
        if self.sample is not None:
            places += [self.sample.spec.data.tokenizer_path, self.sample.spec.model.code]
        return frozenset(split_place(place)[0] for place in places if place) - {self.root}


class OperationOrder(RecordModel):
    """`task.json`: an operation with the paths of its node."""

    task: OperationTask
    """What to do."""
    root_path: str
    """Folder or URL of the storage root here."""
    root_id: str | None = None
    """UUID that the root must have; any when absent."""
    roots: dict[str, str] = Field(default_factory=dict)
    """Path of every storage root here."""


class OperationProgress(RecordModel):
    """Progress of an operation."""

    doing: Annotated[str, Cut(200)]
    """Current activity, in a few words."""
    done: Annotated[int, Field(ge=0, lt=2**62)]
    """Bytes read and written, tokens generated, files deleted, or steps of a build so far."""
    total: Annotated[int, Field(ge=0, lt=2**62)]
    """Total of the same unit."""


class FailedTries(RecordModel):
    """Consecutive failures of a repeated operation."""

    count: Annotated[int, Field(ge=1)]
    """Number of failures."""
    since: datetime
    """When it first failed."""
    reason: ShortText
    """Why it failed last."""
    next_at: datetime | None
    """Earliest time of the next try; absent if it is now."""


class OperationOutcome(RecordModel):
    """`outcome.json`: how an operation ended on its node."""

    outcome: Literal["succeeded", "failed"]
    """Whether the work was done; a verification that finds damage has succeeded."""
    message: ShortText
    """Result in words, or the reason of the failure."""
    verification: Verification | None = None
    """Result of a verification or scrub."""
    files: Annotated[int, Field(ge=0, lt=2**62)] = 0
    """Number of deleted files."""
    export: ExportResult | None = None
    """Result of an export."""
    sample: SampleResult | None = None
    """Result of a sample."""
    commits: tuple[str, ...] = ()
    """Manifests of the commits found, as text, newest first."""
