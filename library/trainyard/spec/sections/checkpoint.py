"""Section `checkpoint`: what is saved, when, by whom, and what is kept."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from trainyard.base.model_base import Auto, Ranks, Seconds, SpecModel, Steps
from trainyard.spec.storage_uri import RootName

KEPT = ("root", "keep_latest_k", "keep_every_steps", "keep_best_k", "keep_best_metric")
"""Fields of the section that do not belong to the built-in trainer alone."""


class CheckpointSection(SpecModel):
    """Checkpoints: each is complete, and loads on any other world size and layout."""

    root: RootName = "checkpoints"
    """Storage root, by its name in the settings, that holds the job's checkpoints."""
    interval_steps: Steps | Auto = "auto"
    """Steps between two saves; only on request, on stop and at the end when 0. `auto` is 100 on
    CPUs, or the nearest number that `keep_every_steps` and `keep_best_k` allow, and so it is on
    GPUs where one of them counts in steps; else 0 there, and saves go by the clock."""
    interval_seconds: Seconds | Auto = "auto"
    """Seconds between two saves, in addition to `interval_steps`; never by time when 0. None begins
    by the clock while one is being written. `auto` is 600 on GPUs where `interval_steps` is `auto`
    and comes to 0; else 0."""
    preflight: bool = True
    """Save completely after initialisation or loading, before the first update of the weights: a
    path or a disk that cannot take a checkpoint fails the job in its first step."""
    async_mode: Literal["auto", "disabled", "async", "async_with_pinned_mem"] = "auto"
    """Whether training continues while a checkpoint is written. The tensors are copied during the
    next forward and backward pass, into host memory that is allocated once; with
    `async_with_pinned_mem` it is pinned, which makes copies from an accelerator fast. `auto` is
    `async_with_pinned_mem` on GPUs, and `disabled` on CPUs and with `optimizer.cpu_offload`."""
    give_up_after_seconds: Seconds = 3600.0
    """How long saves may fail for a transient reason (a full or read-only disk, an I/O error, a
    failing bucket) before the attempt ends. Training continues meanwhile, and each try saves the
    step that is then current; a stop and the last step wait this long for their save. With 0 the
    first failure ends the attempt."""
    writers: Literal["auto", "all", "one_replica"] | Ranks = "auto"
    """Ranks that write: `all` lets each write its shards, `one_replica` only the first
    data-parallel replica; a number of ranks receives the shards of the others as streams. `auto` is
    `all` on disks of one machine and `one_replica` on storage that machines share."""
    staging_gib: Annotated[float, Field(gt=0, json_schema_extra={"unit": "GiB"})] = 4.0
    """Ceiling of the memory that a writer uses for shards of others; goes with a number as
    `writers`."""
    keep_latest_k: Annotated[int, Field(ge=0, json_schema_extra={"unit": "checkpoints"})] = 3
    """Newest checkpoints that are kept; all when 0."""
    keep_every_steps: Steps = 0
    """Checkpoints at multiples of this step are kept for good; none for that reason when 0."""
    keep_best_k: Annotated[int, Field(ge=0, json_schema_extra={"unit": "checkpoints"})] = 0
    """Checkpoints with the least `keep_best_metric` that are kept in addition to the newest; none
    for that reason when 0."""
    keep_best_metric: Literal["validation/loss", "train/loss"] = "validation/loss"
    """Metric of a checkpoint's step by which `keep_best_k` chooses. `train/loss` is that of one
    step's sequences, so the choice also depends on how easy they are."""
