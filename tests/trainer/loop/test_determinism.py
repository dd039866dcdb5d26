"""`training.deterministic` sets every switch in each rank, and on a CPU changes no bit."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.trainer.ranks import run_ranks
from tests.trainer.runs import SmallJob
from trainer.loop.build import WORKSPACE, compute_deterministically
from trainyard.spec.layout import Layout


def _switches() -> dict[str, Any]:
    compute_deterministically()
    return {
        "algorithms": torch.are_deterministic_algorithms_enabled(),
        "warns only": torch.is_deterministic_algorithms_warn_only_enabled(),
        "fills": torch.utils.deterministic.fill_uninitialized_memory,  # type: ignore[attr-defined]
        "cudnn": (torch.backends.cudnn.deterministic, torch.backends.cudnn.benchmark),
        "compiler": torch._inductor.config.deterministic,
        "workspace": os.environ[WORKSPACE],
    }


@pytest.mark.parametrize("given", [None, ":16:8"])
def test_every_switch_is_set(given: str | None) -> None:
    (found,) = run_ranks(1, _switches, env={} if given is None else {WORKSPACE: given})
    assert found == {
        "algorithms": True,
        "warns only": False,
        "fills": False,
        "cudnn": (True, False),
        "compiler": True,
        "workspace": given or ":4096:8",
    }


def test_on_a_cpu_it_trains_and_changes_no_bit(tmp_path: Path) -> None:
    job = SmallJob(tmp_path / "plain").changed(tmp_path / "plain", training={"steps": 6})
    plain = job.launch(1, Layout(dp_shard=2))
    switched = job.changed(tmp_path / "switched", training={"deterministic": True})
    deterministic = switched.launch(1, Layout(dp_shard=2))
    for name in ("train/loss", "train/grad_norm"):
        assert deterministic.values(name) == plain.values(name)
    assert deterministic.digests == plain.digests
