"""Section `checkpoint`: content, times and writers of saves, and retention."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from trainyard.base.model_base import Auto, Ranks, Seconds, SpecModel, Steps
from trainyard.spec.storage_uri import RootName

KEPT = ("root", "keep_latest_k", "keep_every_steps", "keep_best_k", "keep_best_metric")
"""Fields of the section that also apply to programs."""


class CheckpointSection(SpecModel):
    """Checkpoints: each is complete, and loads on any other world size and layout."""

    root: RootName = "checkpoints"
    """Name of the storage root for the job's checkpoints, from the settings."""
    interval_steps: Steps | Auto = "auto"
    """Steps between two saves; with 0 the job saves only on request, on stop and at the end. `auto`
    on CPUs is the number nearest to 100 that `keep_every_steps` and `keep_best_k` allow. On GPUs it
    is the same if retention counts steps (`keep_every_steps`, or `keep_best_k` by validation), else
    0, and `interval_seconds` applies."""
    interval_seconds: Seconds | Auto = "auto"
    """Seconds between two saves, in addition to `interval_steps`; 0 disables them. No such save
    starts while another is being written. `auto` is 600 on GPUs if `interval_steps` is `auto` and
    resolves to 0, else 0."""
    preflight: bool = True
    """Save completely before the first update of the weights, so that a path or disk that cannot
    hold a checkpoint fails the job in its first step."""
    async_mode: Literal["auto", "disabled", "async", "async_with_pinned_mem"] = "auto"
    """Whether training continues while a checkpoint is written. The next forward and backward pass
    overlaps the copy of the tensors to host memory, which is allocated once. With
    `async_with_pinned_mem` this memory is pinned, for fast copies from an accelerator. `auto` is
    `async_with_pinned_mem` on GPUs, and `disabled` on CPUs and with `optimizer.cpu_offload`."""
    give_up_after_seconds: Seconds = 3600.0
    """How long saves may fail for a transient reason (a full or read-only disk, an I/O error, a
    failing bucket) before the attempt ends. Training continues meanwhile, and each retry saves the
    current step. A stop and the last step wait this long for their save. With 0 the first failure
    ends the attempt."""
    writers: Literal["auto", "all", "one_replica"] | Ranks = "auto"
    """Ranks that write. With `all` each rank writes its own shards; with `one_replica` only the
    first data-parallel replica writes. With a number, that many ranks write, and receive the shards
    of the others as streams. `auto` is `all` on local disks and `one_replica` on shared storage."""
    staging_gib: Annotated[float, Field(gt=0, json_schema_extra={"unit": "GiB"})] = 4.0
    """Most memory that a writer uses for shards of other ranks; needs a number as `writers`."""
    keep_latest_k: Annotated[int, Field(ge=0, json_schema_extra={"unit": "checkpoints"})] = 3
    """Number of newest checkpoints to keep; 0 keeps all."""
    keep_every_steps: Steps = 0
    """Keep checkpoints at multiples of this step for good; 0 disables the rule."""
    keep_best_k: Annotated[int, Field(ge=0, json_schema_extra={"unit": "checkpoints"})] = 0
    """Number of checkpoints with the lowest `keep_best_metric` to keep in addition to the newest;
    0 disables the rule."""
    keep_best_metric: Literal["validation/loss", "train/loss"] = "validation/loss"
    """Metric that `keep_best_k` compares, at the step of each checkpoint. `train/loss` covers the
    sequences of one step, so the choice also depends on how easy they are."""
