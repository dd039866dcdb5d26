"""The start of an attempt: at step 0, or from a checkpoint with compatible settings."""

from __future__ import annotations

import logging
import time
from collections.abc import Collection
from dataclasses import dataclass
from functools import partial

from trainer.checkpoint.reader.load import load
from trainer.data.dataset import Dataset
from trainer.distributed import Ranks
from trainer.errors import DataError, LaunchError, MismatchError
from trainer.loop.build import Assembly
from trainer.metrics.run_writer import RunWriter
from trainer.run import TrainerRun
from trainyard.base.problems import SpecError
from trainyard.protocol.attempt import OVERRIDABLE, ResumePoint
from trainyard.protocol.fork_rules import settle_parts
from trainyard.protocol.manifest import DataState, Manifest, TrainState
from trainyard.protocol.resume_parts import ALL_PARTS, CheckpointPart, parts_not_loaded, start_state
from trainyard.protocol.resume_rules import ORDER_FIELDS, differences, harmless_differences
from trainyard.spec.job import JobSpec
from trainyard.training.data_stream import advanced, covered, merged

logger = logging.getLogger("trainer")


STOP = "stop"
"""Kind of a checkpoint saved because of a stop."""


@dataclass(frozen=True)
class Start:
    """The state from which an attempt starts."""

    state: TrainState
    """Counters at the start of the attempt."""
    from_stop: bool = False
    """Whether the model comes from a checkpoint that a stop of this job saved."""


def starting_state(
    run: TrainerRun,
    ranks: Ranks,
    *,
    writer: RunWriter,
    assembly: Assembly,
    dataset: Dataset,
    code_digest: str | None,
) -> Start:
    """Load the parent checkpoint, if there is one; return the start of the attempt.

    Raises:
        DataError: the stream must continue, but the checkpoint was trained on other data.
        CheckpointError: the checkpoint cannot be loaded, or was written under other settings.
        LaunchError: as for `leave_out`.
    """
    resume = run.attempt.resume
    if resume is None:
        start = TrainState(step=0, tokens=0, data=DataState(dataset_digest=dataset.digest))
        return Start(leave_out(start, run))
    compare = partial(
        check_takeover,
        run=run,
        dataset_digest=dataset.digest,
        same_order=dataset.same_order,
        code_digest=code_digest,
    )
    started = time.monotonic()
    manifest = load(
        assembly.model,
        assembly.optimizer,
        resume,
        root=run.checkpoint_root,
        group=ranks.cpu_group,
        layout=run.attempt.layout,
        admit=compare,
    ).manifest
    state = start_state(manifest.train_state, resume.parts, dataset_digest=dataset.digest)
    writer.step = state.step
    writer.checkpoint_id = manifest.checkpoint_id
    writer.event(
        "resumed",
        {
            "checkpoint_id": manifest.checkpoint_id,
            "from_layout": manifest.layout.model_dump(),
            "layout": run.attempt.layout.model_dump(),
            "load_seconds": round(time.monotonic() - started, 3),
            "parts": list(resume.parts),
            "not_exact": list(parts_not_loaded(resume.parts)),
            **compare(manifest),
        },
    )
    if resume.parts != ALL_PARTS:
        logger.info("took %s of %s", ", ".join(resume.parts), manifest.checkpoint_id)
    same_model = CheckpointPart.MODEL in resume.parts and manifest.job_id == run.attempt.job_id
    return Start(leave_out(state, run), from_stop=same_model and manifest.kind == STOP)


def leave_out(state: TrainState, run: TrainerRun) -> TrainState:
    """Remove the attempt's `skip` windows from the stream; return the counters that result.

    Raises:
        LaunchError: a window starts before the current position, so part of it was already trained
            on.
    """
    data = state.data
    new = [window for window in run.attempt.skip if not covered(window, data.skipped)]
    for start, end in new:
        if start < data.position:
            raise LaunchError(
                f"skip: the window [{start}, {end}) begins before position {data.position} of the "
                f"checkpoint at step {state.step}; take a checkpoint from before it",
                path=str(run.directory.attempt),
            )
    skipped = merged([*data.skipped, *new])
    update = {"skipped": skipped, "position": advanced(data.position, 0, skipped)}
    return state.model_copy(update={"data": data.model_copy(update=update)})


OF_OLDER_VERSIONS = ("spec_digest", "model", "training.seq_len", "training.seed")
"""Fields to compare if an older version wrote the manifest, which then contains no spec."""


def check_takeover(
    manifest: Manifest,
    run: TrainerRun,
    *,
    dataset_digest: str,
    same_order: Collection[str],
    code_digest: str | None,
) -> dict[str, object]:
    """Compare a checkpoint's manifest with the attempt that loads the checkpoint.

    A resume compares every field of the spec. If the checkpoint belongs to another job, or only
    parts of it are loaded, a field is compared only if a loaded part depends on it.

    Returns the fields of the event `resumed`: `changed`, the permitted differences with both
    values; `compared`, either `spec` for the whole spec or `OF_OLDER_VERSIONS`; and `code`, the
    digests of the own model's code before and now, if both are known.

    Args:
        manifest: manifest of the checkpoint.
        run: attempt that loads the checkpoint.
        dataset_digest: digest of this attempt's data.
        same_order: digests of datasets with the same sequences in the same order.
        code_digest: digest of the own model's code; None without a code folder.

    Raises:
        MismatchError: a field that must not change differs, or, on a resume without
            `allow_code_change`, the code of an own model differs.
        DataError: the stream must continue, but the data differ.
    """
    resume = run.attempt.resume
    assert resume is not None, "called only with a checkpoint to load"
    before = _recorded_spec(manifest, run.spec)
    whole = manifest.job_id == run.attempt.job_id and resume.parts == ALL_PARTS
    if whole:
        _refuse_other_settings(manifest, before, run=run, resume=resume)
        _refuse_other_code(manifest, resume, code_digest)
    else:
        _refuse_other_parts(manifest, before, run=run, resume=resume)
    if CheckpointPart.DATA in resume.parts:
        _refuse_other_data(manifest, dataset_digest, same_order)
    other = () if whole else differences(before, run.spec)
    changed = [*map(str, other), *map(str, harmless_differences(before, run.spec))]
    record: dict[str, object] = {
        "changed": (*_unknown(manifest, run), *changed),
        "compared": OF_OLDER_VERSIONS if manifest.spec is None else ("spec",),
    }
    if manifest.code_digest is not None and code_digest is not None:
        record["code"] = {"before": manifest.code_digest, "now": code_digest}
    return record


def _recorded_spec(manifest: Manifest, spec: JobSpec) -> JobSpec:
    """Return the spec of a checkpoint; fields missing in its manifest come from `spec`."""
    if manifest.spec is not None:
        return manifest.spec
    training = {"seed": manifest.seed, "seq_len": manifest.seq_len or spec.training.seq_len}
    return spec.model_copy(
        update={
            "model": manifest.model or spec.model,
            "training": spec.training.model_copy(update=training),
        }
    )


def _refuse_other_settings(
    manifest: Manifest, before: JobSpec, *, run: TrainerRun, resume: ResumePoint
) -> None:
    if found := differences(before, run.spec):
        legal = ", ".join(sorted(OVERRIDABLE))
        raise MismatchError(
            f"{manifest.checkpoint_id} was written under other settings (there -> here): "
            f"{'; '.join(map(str, found))}. A resume may change {legal}; for other changes fork it",
            path=resume.path,
        )


def _refuse_other_code(manifest: Manifest, resume: ResumePoint, code_digest: str | None) -> None:
    before = manifest.code_digest
    if before is None or before == code_digest:
        return
    is_hub_model = manifest.model is not None and manifest.model.hugging_face is not None
    field = "hugging_face" if is_hub_model else "code"
    text = f"{manifest.checkpoint_id} was written by other code of model.{field}: {before} -> "
    if not resume.allow_code_change:
        raise MismatchError(
            f"{text}{code_digest}. Restore the code, or resume with allow_code_change",
            path=resume.path,
        )
    logger.warning("%s%s, which this resume allows", text, code_digest)


def _refuse_other_parts(
    manifest: Manifest, before: JobSpec, *, run: TrainerRun, resume: ResumePoint
) -> None:
    try:
        settle_parts(before, run.spec, resume.parts)
    except SpecError as error:
        raise MismatchError(f"{manifest.checkpoint_id}: {error}", path=resume.path) from None


def _refuse_other_data(
    manifest: Manifest, dataset_digest: str, same_order: Collection[str]
) -> None:
    """Raise DataError if the checkpoint was trained on other data or in another order."""
    before = manifest.train_state.data.dataset_digest
    if before not in same_order:
        fields = ", ".join(field for field in ORDER_FIELDS if field != "training.seed")
        raise DataError(
            f"{manifest.checkpoint_id} was trained on data with digest {before}, but the data here "
            f"has {dataset_digest}: one of {fields} differs, or the files that they name have "
            "changed; legal: the former ones, or a fork that leaves data out"
        )


def _unknown(manifest: Manifest, run: TrainerRun) -> tuple[str, ...]:
    """Return a note if the specs differ in fields that an older checkpoint's manifest lacks."""
    here = run.submitted.digest
    if manifest.spec is not None or manifest.spec_digest == here:
        return ()
    return (f"spec_digest: {manifest.spec_digest} -> {here} (in fields that are not recorded)",)
