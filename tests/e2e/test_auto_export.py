"""Automatic exports of a job that trains: read by other programs, and across faults of parts."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.distributed.checkpoint.format_utils import dcp_to_torch_save

from tests.e2e.control_plane import (
    ONE_RANK,
    ControlPlane,
    finished,
    spec,
    wait_for,
)
from tests.examples.test_programs import TITAN
from tests.trainer.hugging_face.weights import ours
from trainyard.client.sdk import Client
from trainyard.protocol.rest.checkpoints import CheckpointView
from trainyard.protocol.states import JobState, OperationState
from trainyard.training.architectures import ARCHITECTURES

pytestmark = [
    pytest.mark.timeout(600),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
]
SECTION = {"interval_steps": 4, "preflight": False, "keep_latest_k": 1, "export": "safetensors"}
LOADER = Path(__file__).parent / "titan_load.py"


def exported(yard: Client, job_id: str) -> list[CheckpointView]:
    """Return the checkpoints of a job with a finished automatic export, newest first."""
    views = yard.checkpoints(job_id)
    return [view for view in views if view.auto_export is not None and view.auto_export.result]


def path_of(view: CheckpointView) -> Path:
    assert view.auto_export is not None
    assert view.auto_export.result is not None
    return Path(view.auto_export.result.path)


def our_logits(checkpoint: Path, whole: Path, tokens_BS: torch.Tensor) -> torch.Tensor:
    """Return the logits of our model with the weights that DCP reads from a checkpoint."""
    dcp_to_torch_save(checkpoint, whole)
    state = torch.load(whole, weights_only=True)
    model = ours("llama3", ARCHITECTURES["llama3"]["debug"])
    with torch.no_grad():
        for name, weight in model.named_parameters():
            weight.copy_(state[f"model.{name}"])
        logits_BSV: torch.Tensor = model(tokens_BS)
    return logits_BSV


def test_exports_are_read_while_training_goes_on(
    plane: ControlPlane, yard: Client, tmp_path: Path
) -> None:
    from transformers import AutoModelForCausalLM

    job = yard.submit(
        spec("bridged", training={"steps": 8}, checkpoint=SECTION, model={"dropout": 0.0})
    )
    run = plane.run(job.id)
    run.hold_at(5)
    view = wait_for(lambda: next(iter(exported(yard, job.id)), None), "export")
    folder = path_of(view)
    assert folder.name == "hugging_face"
    assert yard.job(job.id).state == JobState.RUNNING

    tokens_BS = torch.arange(64).view(2, 32)
    logits_BSV = our_logits(folder.parent, tmp_path / "whole.pt", tokens_BS)
    theirs: Any = AutoModelForCausalLM.from_pretrained(folder)
    with torch.no_grad():
        torch.testing.assert_close(theirs(tokens_BS).logits, logits_BSV, atol=1e-5, rtol=0)
    if TITAN is not None:
        torch.save((tokens_BS, logits_BSV), tmp_path / "logits.pt")
        command = [TITAN, str(LOADER), str(folder), str(tmp_path / "logits.pt")]
        loaded = subprocess.run(command, capture_output=True, text=True, check=False)
        assert loaded.returncode == 0, loaded.stderr[-2000:]
    assert yard.job(job.id).state == JobState.RUNNING
    run.go_on()

    assert finished(yard, job.id).state == JobState.SUCCEEDED
    last = wait_for(
        lambda: next((v for v in exported(yard, job.id) if v.step == 8), None), "last export"
    )
    wait_for(lambda: not any(yard.operations(job_id=job.id, open_only=True)), "end of operations")
    assert [v.step for v in yard.checkpoints(job.id)] == [8]
    assert not folder.parent.exists(), "the export goes with its checkpoint"
    done = [o for o in yard.operations(job_id=job.id) if o.kind == "auto_export"]
    assert {o.state for o in done} <= {OperationState.SUCCEEDED, OperationState.CANCELLED}
    assert yard.delete(job.id, checkpoints="delete")
    wait_for(lambda: not path_of(last).exists(), "deletion")


def test_a_killed_export_and_a_restarted_server(plane: ControlPlane, yard: Client) -> None:
    """The process of the export dies once; its server dies while the repeat waits."""
    section = {**SECTION, "keep_latest_k": 0, "interval_steps": 100}
    job = yard.submit(spec("kill", training={"steps": 4}, checkpoint=section, resources=ONE_RANK))
    operation = wait_for(
        lambda: next((o for o in yard.operations(job_id=job.id) if o.kind == "auto_export"), None),
        "automatic export",
    )
    mark = str(plane.folders.node / "operations" / operation.id)

    def process() -> int | None:
        for folder in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                words = (folder / "cmdline").read_bytes().decode().split("\0")
                if "trainer.operations" in words and mark in "".join(words):
                    return int(folder.name)
        return None

    os.kill(wait_for(process, "process of the export", every=0.02), signal.SIGKILL)
    failing = wait_for(lambda: yard.operation(operation.id).failing, "failure")
    assert failing.count == 1
    with plane.killed("server", yard):
        pass
    assert finished(yard, job.id).state == JobState.SUCCEEDED
    (view,) = yard.checkpoints(job.id)
    assert view.auto_export is not None
    assert "ended by signal 9" in (view.auto_export.message or "")
    done = wait_for(lambda: exported(yard, job.id), "second try")
    assert path_of(done[0]).is_dir()
