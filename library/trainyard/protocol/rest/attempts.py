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
    """Check of a quantity that must be continuous across a resume."""

    name: Literal["sequences", "tokens", "lr", "data_digest", "loss", "code"]
    """Name of the quantity."""
    ok: bool
    """Whether the quantity is continuous."""
    expected: str
    """Value of the quantity in the lineage."""
    got: str
    """Value of the quantity that the attempt reported."""
    within: str | None = None
    """Tolerance of the comparison; absent if both values must be equal."""


class Continuity(RecordModel):
    """Whether an attempt continues the state of its parent checkpoint, within stated tolerances."""

    ok: bool
    """Whether all checks succeeded."""
    step: int
    """Checked step: the first step of the attempt."""
    checks: tuple[ContinuityCheck, ...]
    """Checks of single quantities."""
    exact: bool = False
    """Whether all checks succeeded, `differs` is empty, and the digest of the sequences equals the
    digest that another attempt recorded."""
    differs: tuple[str, ...] = ()
    """For a fork of another job: changed fields that affect the result, such as `optimizer.lr:
    0.0006 -> 0.0003`, and omitted parts of the checkpoint."""
    summary: str = ""
    """Summary: the comparisons with their tolerances; if checks failed, only the names of the
    failed checks."""


class AttemptNodeView(RecordModel):
    """Share of one node in an attempt."""

    node: str
    """Name of the node."""
    node_rank: int
    """Position of the node in the attempt."""
    slots: tuple[int, ...]
    """Indices of the slots that the share holds."""
    state: AttemptNodeState
    """State of the share."""
    unreachable_since: datetime | None
    """Time at which the lease expired without a report of the supervisor; absent while reports
    arrive."""
    lost_at: datetime | None = None
    """Time at which the silent share was marked as lost, so that the attempt could end without the
    share. The share holds its slots until its own end."""
    outcome: AttemptOutcome | None
    """Outcome of the share."""


class AttemptView(RecordModel):
    """An attempt: one launch of a job."""

    id: str
    """Id of the attempt."""
    number: int
    """Number of the attempt in the job."""
    cause: AttemptCause
    """Cause of the launch."""
    actor: str
    """Author of the launch."""
    state: AttemptState
    """State of the attempt."""
    outcome: AttemptOutcome | None
    """Outcome of the attempt."""
    failure: Failure | None
    """Reason of the failure, with the remedy."""
    layout: Layout
    """Sizes of the parallel axes."""
    layout_name: str
    """Layout as text."""
    device: DeviceKind
    """Kind of the attempt's slots."""
    auto: AutoValues
    """Resolved value of each field with the value `auto`."""
    overrides: Overrides
    """Settings that replace settings of the job's spec."""
    changes: tuple[Difference, ...]
    """Fields of the job's spec that the overrides change."""
    micro_batch_size: int | None
    """Number of sequences in one forward pass of a rank; null for a program."""
    parent_checkpoint_id: str | None
    """Id of the parent checkpoint; absent for a fresh start."""
    start_step: int
    """Step of the parent checkpoint; 0 for a fresh start, and for a fork without `counters`."""
    skip: Windows
    """Windows of the stream (start, end) that the lineage up to this attempt skips."""
    last_step: int
    """Last step that the attempt reported."""
    on_lineage: bool
    """Whether the attempt is the current attempt or one of its ancestors."""
    continuity: Continuity | None
    """Check of the first step after a resume."""
    save_failed: SaveFailed | None
    """Last save, if it failed and is being retried; absent once a later save is committed."""
    stragglers: tuple[StragglerView, ...] = ()
    """Ranks that are slower than their peers, costliest first; empty once the attempt has ended."""
    nodes: tuple[AttemptNodeView, ...]
    """Shares of the nodes, by node rank."""
    provenance: dict[str, object] | None
    """Software versions, host and commit of the attempt."""
    created_at: datetime
    """Time at which the attempt was placed."""
    started_at: datetime | None
    """Time at which training started."""
    ended_at: datetime | None
    """Time at which the last share ended."""
