"""One attempt, as an ordered recipe: fence, data, model, state, steps, last checkpoint."""

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
    """How a dataset is opened; tests put a dataset of their own in its place."""

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
    """Run an attempt on all ranks of the launch; every rank calls this and returns its outcome.

    Args:
        run: what to train.
        writer: where this rank says what happens.
        open_dataset: opens the dataset.
        after_step: called on each rank with each completed step, before all ranks agree on what
            follows it.

    Raises:
        RunError: the run cannot go on; the reason is typed.
    """
    # Before the first product on a GPU: cuBLAS reads its workspace setting once.
    if run.spec.training.deterministic:
        compute_deterministically()
    with joined(
        run.attempt.device or run.spec.resources.device,
        hang_seconds=run.spec.guard.hang_seconds,
        flight_recorder=Path(run.directory.flight_recorder),
    ) as ranks:
        start_history(ranks.device)  # before the first allocation that a snapshot is to show
        writer.provenance(provenance)
        code = _code_on_every_rank(run, ranks)
        checkpoints = CheckpointManager(
            _owner(run, code),
            cpu_group=ranks.cpu_group,
            device=ranks.device,
            retry=SaveRetry(run.spec.checkpoint.give_up_after_seconds),
        )
        # Before anything that takes long: an outrun attempt ends within seconds, and an older one
        # that still runs can commit nothing more that this one would not know of.
        checkpoints.raise_fence()
        on_rank_0(ranks.cpu_group, lambda: _refuse_second_launch(run))
        # Data before the model: tokenizing needs no GPU memory, and fails before any is taken.
        writer.enter(Phase.BUILDING_CACHE)
        dataset = _open_on_every_rank(run, ranks, writer, open_dataset)
        # Weights: drawn from the seed, then replaced by given ones or by those of a checkpoint.
        writer.enter(Phase.LOADING)
        assembly = assemble(run.spec, run.attempt.layout, ranks.device, roots=run.attempt.roots)
        _load_initial_weights(run, ranks, writer, assembly)
        state = starting_state(run, writer, checkpoints, assembly, dataset, code)
        loop = Loop(run, ranks, writer, checkpoints, assembly, state, after_step)
        snapshots = Path(run.directory.snapshots)
        model, optimizer = assembly.model, assembly.optimizer
        with explaining_memory(model, optimizer, ranks.device, snapshots, rank=ranks.rank):
            outcome = loop.run(dataset)
        writer.finish(outcome)
    return outcome


def _code_on_every_rank(run: Run, ranks: Ranks) -> str | None:
    """Return the digest of an own model's code, and refuse nodes that see different code."""
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
    """Refuse to mix what this launch saves with what another launch of the attempt has saved."""
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
    """Open the dataset everywhere, and refuse nodes that see different data."""
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
    """Put given weights in place of drawn ones, if the job starts from some."""
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
    """Have this process compute so from now on; comes before its first product on a GPU.

    An operation that has no deterministic kernel raises RuntimeError and names itself.
    """
    # Without workspaces of its own for each stream, cuBLAS may split a sum in another way.
    os.environ.setdefault(WORKSPACE, ":4096:8")
    # Attention too: flash and memory-efficient backward then add up in one order, cuDNN's is left.
    torch.use_deterministic_algorithms(True)
    # It would write NaN into every new tensor, a pass over memory for what is overwritten anyway.
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]
    torch.backends.cudnn.deterministic = True
    torch.backends.cudnn.benchmark = False
    # Kernels that are chosen by their time may be others in the next run, and add up otherwise.
    torch._inductor.config.deterministic = True
