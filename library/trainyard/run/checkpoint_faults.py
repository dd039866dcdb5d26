"""Faults of checkpoints: reasons for which a checkpoint is unusable."""

from __future__ import annotations

from enum import StrEnum


class CheckpointFault(StrEnum):
    """Fault that makes a checkpoint unusable."""

    NOT_COMMITTED = "not_committed"
    """The marker is missing."""
    MANIFEST_DAMAGED = "manifest_damaged"
    """The manifest is unreadable, or differs from the committed manifest."""
    ANOTHER_CHECKPOINT = "another_checkpoint"
    """The folder holds another checkpoint than the checkpoint in the catalog."""
    FILE_MISSING = "file_missing"
    """A file is missing."""
    FILE_SIZE = "file_size"
    """A file is too short or too long."""
    FILE_DAMAGED = "file_damaged"
    """The checksum of a file differs from the checksum in the manifest."""
    METADATA_REFUSED = "metadata_refused"
    """The DCP metadata contains objects that no checkpoint needs."""
    TENSOR_INCOMPLETE = "tensor_incomplete"
    """The pieces of a tensor do not cover the whole tensor."""
    LOAD_FAILED = "load_failed"
    """A tensor could not be loaded."""
    COUNTERS_DISAGREE = "counters_disagree"
    """Steps, tokens and position in the data contradict each other."""
    LINKED_OUTSIDE = "linked_outside"
    """A file is a symbolic link to a place outside the storage root."""
