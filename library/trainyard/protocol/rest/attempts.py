"""Views of a job's attempts."""

from __future__ import annotations

from datetime import datetime
from typing import Literal

from trainyard.base.model_base import RecordModel
from trainyard.protocol.attempt import Overrides
from trainyard.protocol.manifest import SaveFailed
from trainyard.protocol.rest.metrics_and_logs import StragglerView
from trainyard.protocol.resume_rules import Difference
from trainyard.protocol.states import AttemptCause, AttemptNodeState, AttemptOutcome, AttemptState
from trainyard.run.failures import Failure
from trainyard.spec.auto import AutoValues, DeviceKind
from trainyard.spec.layout import Layout
from trainyard.training.data_stream import Windows


class ContinuityCheck(RecordModel):
    """A quantity that must be continuous across a resume."""

    name: Literal["sequences", "tokens", "lr", "data_digest", "loss", "code"]
    """Name of the quantity."""
    ok: bool
    """Whether it held."""
    expected: str
    """Value in the lineage."""
    got: str
    """Value that the attempt reported."""
    within: str | None = None
    """Bound of the comparison; absent if both must be equal."""


class Continuity(RecordModel):
    """Whether an attempt continues from the state of its parent checkpoint, within named bounds."""

    ok: bool
    """Whether every check held."""
    step: int
    """First step of the attempt, which is the checked step."""
    checks: tuple[ContinuityCheck, ...]
    """The checks."""
    exact: bool = False
    """Whether every check held, nothing differs, and the digest of the sequences equals that of
    another attempt."""
    differs: tuple[str, ...] = ()
    """For a fork from another job: changed fields that affect the result, such as `optimizer.lr:
    0.0006 -> 0.0003`, and parts of the checkpoint that were left out. The checks cover the rest."""
    summary: str = ""
    """The comparisons with their bounds, or the difference."""


class AttemptNodeView(RecordModel):
    """One node's share of an attempt."""

    node: str
    """Node."""
    node_rank: int
    """Position in the attempt."""
    slots: tuple[int, ...]
    """Slots that it holds."""
    state: AttemptNodeState
    """State."""
    unreachable_since: datetime | None
    """When its lease expired without a report of its supervisor; absent while reports arrive."""
    lost_at: datetime | None = None
    """When the attempt ended without this share; its slots are held until it has ended."""
    outcome: AttemptOutcome | None
    """How it ended."""


class AttemptView(RecordModel):
    """One launch of a job."""

    id: str
    """Id."""
    number: int
    """Number within the job."""
    cause: AttemptCause
    """Why it was launched."""
    actor: str
    """Who requested it."""
    state: AttemptState
    """State."""
    outcome: AttemptOutcome | None
    """How it ended."""
    failure: Failure | None
    """Why it failed, and the remedy."""
    layout: Layout
    """Parallel axes."""
    layout_name: str
    """The axes in words."""
    device: DeviceKind
    """Kind of its slots."""
    auto: AutoValues
    """Resolved value of each field that is `auto`."""
    overrides: Overrides
    """Settings that override the job's spec."""
    changes: tuple[Difference, ...]
    """Fields of the job's spec that the overrides change."""
    micro_batch_size: int | None
    """Sequences in one forward pass of a rank; null for a program."""
    parent_checkpoint_id: str | None
    """Its parent checkpoint; absent for a fresh start."""
    start_step: int
    """Step of that checkpoint; 0 for a fresh start."""
    skip: Windows
    """Windows of the stream (start, end) that the lineage skips up to this attempt."""
    last_step: int
    """Last step that it reported."""
    on_lineage: bool
    """Whether it is the current attempt or an ancestor of it."""
    continuity: Continuity | None
    """Check of the first step after a resume."""
    save_failed: SaveFailed | None
    """The last save if it failed and is retried; absent once a save is committed."""
    stragglers: tuple[StragglerView, ...] = ()
    """Its ranks that are slower than their peers, the costliest first; empty once it has ended."""
    nodes: tuple[AttemptNodeView, ...]
    """Its nodes, by node rank."""
    provenance: dict[str, object] | None
    """Versions, host and commit of the run."""
    created_at: datetime
    """When it was placed."""
    started_at: datetime | None
    """When training started."""
    ended_at: datetime | None
    """When the last of its nodes ended."""
