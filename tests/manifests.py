"""Manifests of checkpoints that nothing was written for."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from trainyard.protocol.manifest import DataState, Manifest, TrainState
from trainyard.run.checkpoints.checkpoint_names import checkpoint_id
from trainyard.spec.layout import Layout


def make_manifest(job_id: str, attempt: int, state: TrainState, **fields: Any) -> Manifest:
    """Return the manifest of a step, with these fields in place of the usual ones."""
    usual: dict[str, Any] = {
        "checkpoint_id": checkpoint_id(job_id, attempt, state.step),
        "job_id": job_id,
        "attempt": attempt,
        "created_at": datetime(2026, 1, 1, tzinfo=UTC),
        "train_state": state,
        "layout": Layout(),
        "seed": 0,
        "spec_digest": "5" * 64,
        "parent": None,
        "kind": "interval",
        "param_dtype": "float32",
        "torch_version": "2.13.0",
        "save_seconds": 0.1,
        "files": (),
    }
    return Manifest(**(usual | fields))


def state_at(step: int, *, sequences: int = 1, tokens: int = 1) -> TrainState:
    """Return the counters after a step, of so many sequences a step and tokens a sequence."""
    consumed = step * sequences
    data = DataState(position=consumed, consumed=consumed, dataset_digest="d" * 32)
    return TrainState(step=step, tokens=consumed * tokens, data=data)
