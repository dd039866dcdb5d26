"""Views of a job's attempts."""

from __future__ import annotations

from datetime import datetime
from typing import Literal

from trainyard.base.models import RecordModel
from trainyard.protocol.attempt import Overrides
from trainyard.protocol.manifest import SaveFailed
from trainyard.protocol.states import AttemptCause, AttemptNodeState, AttemptOutcome, AttemptState
from trainyard.run.failures import Failure
from trainyard.spec.auto import AutoValues, DeviceKind
from trainyard.spec.layout import Layout
from trainyard.training.stream import Windows


class ContinuityCheck(RecordModel):
    """One thing that must be continuous over a resume."""

    name: Literal["sequences", "tokens", "lr", "data_digest", "loss", "code"]
    """What is compared."""
    ok: bool
    """Whether it held."""
    expected: str
    """What the lineage says."""
    got: str
    """What the attempt reported."""
    within: str | None = None
    """Bound of the comparison; absent where both must be equal."""


class Continuity(RecordModel):
    """Whether an attempt continues where its parent checkpoint stood, within the named bounds."""

    ok: bool
    """Whether every check held."""
    step: int
    """First step of the attempt, at which it was checked."""
    checks: tuple[ContinuityCheck, ...]
    """The checks."""
    exact: bool = False
    """Whether every check held, and the digest of the sequences is that of another attempt."""
    summary: str = ""
    """What was compared, within which bounds, or what differs."""


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
    """Since when its supervisor has been silent for longer than its lease."""
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
    """Who asked for it."""
    state: AttemptState
    """State."""
    outcome: AttemptOutcome | None
    """How it ended."""
    failure: Failure | None
    """Why it failed, and what helps."""
    layout: Layout
    """Parallel axes."""
    layout_name: str
    """The axes in words."""
    device: DeviceKind
    """Kind of its slots."""
    auto: AutoValues
    """What each field that is `auto` stands for in it."""
    overrides: Overrides
    """What it changes against the job's spec."""
    micro_batch_size: int
    """Sequences that one rank runs at once."""
    parent_checkpoint_id: str | None
    """Checkpoint from which it went on."""
    start_step: int
    """Step of that checkpoint; 0 for a fresh start."""
    skip: Windows
    """Windows of the stream, start and end, that are left out up to here."""
    last_step: int
    """Last step that it reported."""
    on_lineage: bool
    """Whether the current attempt descends from it (or is it)."""
    continuity: Continuity | None
    """Check of the first step after a resume."""
    save_failed: SaveFailed | None
    """The last save, where it failed and is tried again; absent once one is committed."""
    nodes: tuple[AttemptNodeView, ...]
    """Its nodes, by node rank."""
    provenance: dict[str, object] | None
    """Versions, host and commit that it ran with."""
    created_at: datetime
    """When it was placed."""
    started_at: datetime | None
    """When training began."""
    ended_at: datetime | None
    """When the last of its nodes ended."""
