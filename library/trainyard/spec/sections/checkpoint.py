"""Section `checkpoint`: content, times and writers of saves, and retention."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from trainyard.base.model_base import Auto, Ranks, Seconds, SpecModel, Steps
from trainyard.spec.storage_uri import RootName

START = r"^[A-Za-z0-9][A-Za-z0-9._-]*/a[1-9][0-9]{0,8}/step-(0|[1-9][0-9]{0,8})$"
"""Pattern of `start_from`: the folder of a checkpoint, relative to its storage root."""
KEPT = ("root", "keep_latest_k", "keep_every_steps", "keep_best_k", "keep_best_metric")
"""Fields of the section that also apply to programs."""


class CheckpointSection(SpecModel):
    """Checkpoints. Each checkpoint is complete, and can be loaded on any world size and layout."""

    root: RootName = "checkpoints"
    """Name of the storage root for the job's checkpoints, as in the settings of the nodes."""
    interval_steps: Steps | Auto = "auto"
    """Steps between two saves. With 0 the job saves only on request, on a stop, at the end, and by
    `interval_seconds`. `auto` on CPUs is the number nearest to 100 that `keep_every_steps` and
    `keep_best_k` allow. `auto` on GPUs is the same number if retention counts steps
    (`keep_every_steps`, or `keep_best_k` by validation) or if `interval_seconds` is 0, else 0, so
    that `interval_seconds` applies."""
    interval_seconds: Seconds | Auto = "auto"
    """Seconds between two saves by the clock, in addition to `interval_steps`; 0 disables saves by
    the clock. Such a save does not start while another save is being written. `auto` is 600 on GPUs
    if `interval_steps` is `auto` and resolves to 0, else 0."""
    preflight: bool = True
    """Save a complete checkpoint before the first update of the weights. If the storage root cannot
    hold a checkpoint, the job fails in its first step."""
    async_mode: Literal["auto", "disabled", "async", "async_with_pinned_mem"] = "auto"
    """Whether training continues while a checkpoint is written. During the next forward and
    backward pass the tensors are copied to host memory, which is allocated once. With
    `async_with_pinned_mem` this memory is pinned, for fast copies from an accelerator. `auto` is
    `async_with_pinned_mem` on GPUs, and `disabled` on CPUs and with `optimizer.cpu_offload`."""
    give_up_after_seconds: Seconds = 3600.0
    """Time for which saves may fail for a transient reason (a full or read-only disk, an I/O error,
    a failing bucket) before the attempt ends. Meanwhile training continues, and each retry saves
    the current step. A stop and the last step wait at most this long for their save. With 0 the
    first failed save ends the attempt."""
    writers: Literal["auto", "all", "one_replica"] | Ranks = "auto"
    """Ranks that write checkpoints. With `all`, each rank writes its own shards. With
    `one_replica`, only the first data-parallel replica writes. With a number, that many ranks
    write, and the other ranks stream their shards to them. `auto` is `all` on local disks and
    `one_replica` on shared storage."""
    staging_gib: Annotated[float, Field(gt=0, json_schema_extra={"unit": "GiB"})] = 4.0
    """Maximum memory of a writer for shards of other ranks; needs a number in `writers`."""
    keep_latest_k: Annotated[int, Field(ge=0, json_schema_extra={"unit": "checkpoints"})] = 3
    """Number of newest checkpoints to keep; 0 keeps all."""
    keep_every_steps: Steps = 0
    """Always keep checkpoints at steps that are a multiple of this number; 0 disables the rule."""
    keep_best_k: Annotated[int, Field(ge=0, json_schema_extra={"unit": "checkpoints"})] = 0
    """Number of best checkpoints to keep in addition to the newest. The best have the lowest
    `keep_best_metric`; 0 disables the rule."""
    keep_best_metric: Literal["validation/loss", "train/loss"] = "validation/loss"
    """Metric by which `keep_best_k` compares checkpoints, at the step of each checkpoint.
    `train/loss` covers only the sequences of that step, so the choice also depends on how easy
    these sequences are."""
    export: Literal["none", "dcp", "safetensors"] = "none"
    """Format in which a node exports each kept checkpoint, into the checkpoint's folder, while
    training continues. `dcp` adds DCP's index `.metadata` where the save has left it out.
    `safetensors` adds the folder `hugging_face`, which `transformers` loads."""
    start_from: Annotated[str, Field(pattern=START, max_length=200)] | None = None
    """Folder of a committed checkpoint below `root` from which the job starts, such as
    `torchtitan/a1/step-20000`: weights, optimizer state, steps and tokens. The data start at
    position 0. Without effect once the job has a checkpoint of its own."""

    @property
    def start_step(self) -> int:
        """Step at which a job without a checkpoint of its own starts: the step in `start_from`."""
        return 0 if self.start_from is None else int(self.start_from.rpartition("-")[2])
