"""What can be wrong with a checkpoint, by name."""

from __future__ import annotations

from enum import StrEnum


class CheckpointFault(StrEnum):
    """What proves that a checkpoint cannot be used."""

    NOT_COMMITTED = "not_committed"
    """The marker is missing."""
    MANIFEST_DAMAGED = "manifest_damaged"
    """The manifest is not the one that was committed, or none."""
    ANOTHER_CHECKPOINT = "another_checkpoint"
    """The folder holds another checkpoint than the catalog's."""
    FILE_MISSING = "file_missing"
    """A file is not there."""
    FILE_SIZE = "file_size"
    """A file is too short or too long."""
    FILE_DAMAGED = "file_damaged"
    """A file's checksum is not the manifest's."""
    METADATA_REFUSED = "metadata_refused"
    """The DCP metadata contains what no checkpoint needs."""
    TENSOR_INCOMPLETE = "tensor_incomplete"
    """The pieces of a tensor do not make up all of it."""
    LOAD_FAILED = "load_failed"
    """A tensor could not be loaded."""
    COUNTERS_DISAGREE = "counters_disagree"
    """Steps, tokens and position in the data are not those of one training."""
    LINKED_OUTSIDE = "linked_outside"
    """A file is a symbolic link that leads out of the storage root."""
