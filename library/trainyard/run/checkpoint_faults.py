"""Faults of checkpoints, by name."""

from __future__ import annotations

from enum import StrEnum


class CheckpointFault(StrEnum):
    """Proof that a checkpoint is unusable."""

    NOT_COMMITTED = "not_committed"
    """The marker is missing."""
    MANIFEST_DAMAGED = "manifest_damaged"
    """The manifest is not the committed one, or no manifest at all."""
    ANOTHER_CHECKPOINT = "another_checkpoint"
    """The folder holds another checkpoint than the catalog's."""
    FILE_MISSING = "file_missing"
    """A file is missing."""
    FILE_SIZE = "file_size"
    """A file is too short or too long."""
    FILE_DAMAGED = "file_damaged"
    """A file's checksum is not the manifest's."""
    METADATA_REFUSED = "metadata_refused"
    """The DCP metadata contains objects that no checkpoint needs."""
    TENSOR_INCOMPLETE = "tensor_incomplete"
    """The pieces of a tensor do not cover it."""
    LOAD_FAILED = "load_failed"
    """A tensor could not be loaded."""
    COUNTERS_DISAGREE = "counters_disagree"
    """Steps, tokens and position in the data do not agree."""
    LINKED_OUTSIDE = "linked_outside"
    """A file is a symbolic link to a place outside the storage root."""
