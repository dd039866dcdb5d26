"""One attempt in order: process group, fence, data, model, state, steps, last checkpoint."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

import torch
import torch._inductor.config
import torch.utils.deterministic

from trainer.checkpoint.manager import CheckpointManager
from trainer.checkpoint.manifest import committed_manifests
from trainer.checkpoint.pending_save import SaveRetry
from trainer.checkpoint.writer.checkpoint_writer import CheckpointOwner
from trainer.data.dataset import Dataset, open_dataset
from trainer.distributed import Ranks, joined, on_every_rank, on_rank_0
from trainer.errors import CheckpointError, DataError, LaunchError
from trainer.hugging_face.load import load_initial_weights
from trainer.loop.build import Assembly, assemble
from trainer.loop.resume import starting_state
from trainer.loop.steps import Loop
from trainer.metrics.memory_report import explaining_memory, start_history
from trainer.metrics.run_writer import RunWriter
from trainer.models.code import code_digest
from trainer.parallel.quantize import refresh_scales
from trainer.provenance import provenance
from trainer.run import Run
from trainyard.run.directory import Phase
from trainyard.run.records import Outcome
from trainyard.spec.job import JobSpec


class OpenDataset(Protocol):
    """Signature of `open_dataset`, which tests replace."""

    def __call__(
        self,
        spec: JobSpec,
        *,
        roots: dict[str, str],
        cache_dir: Path,
        on_progress: Callable[[], None],
    ) -> Dataset: ...


def train(
    run: Run,
    writer: RunWriter,
    *,
    open_dataset: OpenDataset = open_dataset,
    after_step: Callable[[int], None] = lambda _step: None,
) -> Outcome:
    """Run an attempt; every rank of the launch calls this and returns the same outcome.

    Args:
        run: the attempt.
        writer: writes the records of this rank.
        open_dataset: opens the dataset.
        after_step: called on each rank after each step, before the ranks read its requests.

    Raises:
        RunError: the attempt failed for a known reason.
    """
    # Before the first product on a GPU: cuBLAS reads its workspace variable only once.
    if run.spec.training.deterministic:
        compute_deterministically()
    with joined(
        run.attempt.device or run.spec.resources.device,
        hang_seconds=run.spec.guard.hang_seconds,
        flight_recorder=Path(run.directory.flight_recorder),
    ) as ranks:
        start_history(ranks.device)  # before the first allocation
        writer.provenance(provenance)
        code = _code_on_every_rank(run, ranks)
        checkpoints = CheckpointManager(
            _owner(run, code),
            cpu_group=ranks.cpu_group,
            device=ranks.device,
            retry=SaveRetry(run.spec.checkpoint.give_up_after_seconds),
        )
        # Before anything slow: an outrun attempt ends within seconds, and an older one that still
        # runs can no longer commit a checkpoint, so this attempt's parent stays the newest one.
        checkpoints.raise_fence()
        on_rank_0(ranks.cpu_group, lambda: _refuse_second_launch(run))
        # Data before the model: tokenization takes longest and needs no GPU memory.
        writer.enter(Phase.BUILDING_CACHE)
        dataset = _open_on_every_rank(run, ranks, writer, open_dataset)
        # Weights are drawn from the seed, then replaced by published ones or by a checkpoint's.
        writer.enter(Phase.LOADING)
        assembly = assemble(run.spec, run.attempt.layout, ranks.device, roots=run.attempt.roots)
        _load_initial_weights(run, ranks, writer, assembly)
        state = starting_state(run, ranks, writer, assembly, dataset, code)
        loop = Loop(run, ranks, writer, checkpoints, assembly, state, after_step)
        snapshots = Path(run.directory.snapshots)
        model, optimizer = assembly.model, assembly.optimizer
        with explaining_memory(model, optimizer, ranks.device, snapshots, rank=ranks.rank):
            outcome = loop.run(dataset)
        writer.finish(outcome)
    return outcome


def _code_on_every_rank(run: Run, ranks: Ranks) -> str | None:
    """Return the digest of an own model's code, which must be equal on all nodes."""
    digests = on_every_rank(ranks.cpu_group, lambda: code_digest(run.spec, run.attempt.roots))
    for rank, other in enumerate(digests):
        if other != digests[0]:
            raise LaunchError(
                f"rank {rank} sees other code in model.code={run.spec.model.code!r} than rank 0: "
                f"digest {other} instead of {digests[0]}; every node needs the same files"
            )
    return digests[0]


def _owner(run: Run, code_digest: str | None) -> CheckpointOwner:
    return CheckpointOwner(
        root=run.checkpoint_root,
        job_id=run.attempt.job_id,
        attempt=run.attempt.attempt,
        spec=run.submitted,
        settings=run.spec,
        layout=run.attempt.layout,
        parent=run.attempt.resume.checkpoint_id if run.attempt.resume else None,
        code_digest=code_digest,
    )


def _refuse_second_launch(run: Run) -> None:
    """Raise CheckpointError if another launch of this attempt has saved checkpoints already."""
    job, attempt = run.attempt.job_id, run.attempt.attempt
    if saved := committed_manifests(run.checkpoint_root, job, attempt=attempt):
        folder = run.checkpoint_root / job / f"a{attempt}"
        raise CheckpointError(
            f"{folder} holds checkpoints of another launch of this attempt, such as "
            f"{saved[0].checkpoint_id}: give a higher attempt number, another job name, or "
            "another storage root",
            path=str(folder),
        )


def _open_on_every_rank(
    run: Run, ranks: Ranks, writer: RunWriter, open_dataset: OpenDataset
) -> Dataset:
    """Open the dataset on every rank; its digest must be equal on all nodes."""
    opened: list[Dataset] = []

    def digest() -> str:
        opened.append(
            open_dataset(
                run.spec,
                roots=run.attempt.roots,
                cache_dir=run.cache_dir,
                on_progress=writer.beat,
            )
        )
        return opened[0].digest

    digests = on_every_rank(ranks.cpu_group, digest)
    for rank, other in enumerate(digests):
        if other != digests[0]:
            raise DataError(
                f"rank {rank} sees other data than rank 0: dataset digest {other} instead of "
                f"{digests[0]}; every node needs the same files"
            )
    return opened[0]


def _load_initial_weights(run: Run, ranks: Ranks, writer: RunWriter, assembly: Assembly) -> None:
    """Load published weights at the start of a job with `model.initial_weights`."""
    spec = run.spec
    if spec.model.initial_weights is None or run.attempt.resume is not None:
        return
    files = load_initial_weights(assembly.model, spec, run.attempt.roots, ranks.cpu_group)
    writer.event(
        "weights_loaded",
        {"place": spec.model.initial_weights, "files": [file.model_dump() for file in files]},
    )
    refresh_scales(assembly.model)


WORKSPACE = "CUBLAS_WORKSPACE_CONFIG"


def compute_deterministically() -> None:
    """Select deterministic algorithms in this process; call it before the first product on a GPU.

    From then on an operation without a deterministic kernel raises RuntimeError.
    """
    # With a shared workspace for several streams, cuBLAS may split a sum differently in each run.
    os.environ.setdefault(WORKSPACE, ":4096:8")
    # Covers attention: flash and memory-efficient backward sum in a fixed order; cuDNN is skipped.
    torch.use_deterministic_algorithms(True)
    # The mode also fills new tensors with NaN, a pass over memory that only finds bugs.
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]
    torch.backends.cudnn.deterministic = True
    torch.backends.cudnn.benchmark = False
    # Autotuned kernels depend on timing: another run may select others, which sum differently.
    torch._inductor.config.deterministic = True
