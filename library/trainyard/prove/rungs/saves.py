"""Saves and loads: their bandwidth, and a verification of what they wrote."""

from __future__ import annotations

from typing import Any

from trainyard.client.references import LAST
from trainyard.protocol.event_kinds import EventKind
from trainyard.protocol.rest.checkpoints import CheckpointView
from trainyard.protocol.rest.event_data import Resumed
from trainyard.protocol.rest.jobs import JobView
from trainyard.protocol.states import JobState
from trainyard.prove.bench import Bench, CheckError, described
from trainyard.prove.figures import Figure, at_least, equal, reported

LEAST_GB_PER_SECOND = {"cpu": 0.01, "cuda": 0.1}
"""Minimum bandwidth of a save and of a load in 10^9 bytes per second. On GPUs the states of an 8B
model (96 GB) take a quarter of an hour at this bandwidth, which no interval between saves hides.
Ranks on CPU slots share the cores, which also compute the checksums."""
STEPS, MORE = 4, 6
TICK = 1e-3
"""Shortest duration that a report can have, in seconds."""
SMALL = {
    "size": "debug",
    "dim": 384,
    "n_layers": 6,
    "n_heads": 6,
    "n_kv_heads": 6,
    "ffn_dim": 1152,
}
MODELS: dict[str, tuple[dict[str, Any], ...]] = {"cpu": (SMALL,), "cuda": ({"size": "1B"}, SMALL)}
"""Models by kind of device; the first that fits into the slots is saved."""


def save_and_load(bench: Bench) -> list[Figure]:
    """Save a model on all slots, load it on fewer, and verify the last checkpoint."""
    documents = [_document(bench, model) for model in MODELS[bench.device]]
    job = bench.submit(next(filter(bench.fits, documents), documents[-1]))
    bench.commands += [
        f"trainyard resume {LAST} --world-size {_half(bench)} --steps {MORE}  # after its success",
        f"trainyard checkpoints verify {LAST}@step-{MORE} --wait  # after its second success",
    ]
    job = bench.succeeded(bench.watch(job.id, lambda now: _advance(bench, now)))
    saved = sorted(bench.yard.checkpoints(job.id), key=lambda each: (each.attempt, each.step))
    if len(saved) < 2:
        raise CheckError(f"{described(job)}; it has {len(saved)} checkpoints of 2")
    operation = bench.yard.verify(saved[-1].id)
    bench.yard.wait_for_operation(operation.id, timeout=max(bench.seconds_left, 1.0))
    verified = bench.yard.checkpoint(saved[-1].id).verification
    continuity = None if job.current_attempt is None else job.current_attempt.continuity
    return [
        *_writes(bench, saved[0]),
        *_loads(bench, job, saved),
        equal("verified", verified is not None and verified.ok, expected=True),
        equal("continuous", continuity is not None and continuity.ok, expected=True),
    ]


def _document(bench: Bench, model: dict[str, Any]) -> dict[str, Any]:
    return {
        "name": "prove-saves",
        "model": model,
        "data": {"max_tokens": 200_000},
        "training": {
            "steps": STEPS,
            "seq_len": 64,
            "global_batch_size": max(2, bench.slots),
            "micro_batch_size": 1,
            "log_every_steps": 1,
        },
        "lr_schedule": {"warmup_steps": 0, "total_steps": MORE},
        "compile": {"enabled": False},
        "checkpoint": {"interval_steps": 0, "interval_seconds": 0, "preflight": True},
        "retry": {"max_retries": 0},
        "resources": {"world_size": bench.slots, "device": bench.device},
    }


def _half(bench: Bench) -> int:
    return max(1, bench.slots // 2)


def _advance(bench: Bench, job: JobView) -> bool:
    """Resume the finished job once on fewer slots; return whether the second attempt has ended."""
    number = 0 if job.current_attempt is None else job.current_attempt.number
    if job.pending is not None or job.state not in {JobState.SUCCEEDED, JobState.FAILED}:
        return job.state in {JobState.CANCELLED, JobState.STOPPED}
    if job.state is JobState.SUCCEEDED and number == 1:
        bench.yard.resume(job.id, world_size=_half(bench), steps=MORE)
        return False
    return True


def _writes(bench: Bench, checkpoint: CheckpointView) -> list[Figure]:
    """Return the size, and each time with its rate; the bound is on the rate of the storage."""
    gb, saved, wrote = checkpoint.size / 1e9, checkpoint.save_seconds, checkpoint.write_seconds
    least = LEAST_GB_PER_SECOND[bench.device]
    whole = gb / max(saved, TICK)
    figures = [reported("checkpoint_gb", gb), reported("save_seconds", saved)]
    if wrote is None:
        return [*figures, at_least("save_gb_per_second", whole, least)]
    return [
        *figures,
        reported("save_gb_per_second", whole),
        reported("write_seconds", wrote),
        at_least("write_gb_per_second", gb / max(wrote, TICK), least),
    ]


def _loads(bench: Bench, job: JobView, saved: list[CheckpointView]) -> list[Figure]:
    sizes = {each.id: each.size for each in saved}
    for event in bench.yard.events(job.id):
        data = event.data
        if event.kind == EventKind.RESUMED and isinstance(data, Resumed):
            if data.load_seconds is None:
                return [reported("load_seconds", "not reported by workers of this version")]
            size, seconds = sizes.get(data.checkpoint_id, 0) / 1e9, max(data.load_seconds, TICK)
            return [
                reported("load_seconds", data.load_seconds),
                at_least("load_gb_per_second", size / seconds, LEAST_GB_PER_SECOND[bench.device]),
            ]
    raise CheckError(f"{described(job)}; it has no event of its load")
