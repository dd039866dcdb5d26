"""Settings of torchtitan that differ from the spec are named, and never an error."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tests.trainer.titan_import.titan_files import SMALL, root_of, saved, spec_of, titan_state
from trainer.titan_import.convert import convert
from trainyard.spec.job import parse_job_spec

pytestmark = [
    pytest.mark.filterwarnings("ignore:torch.distributed is disabled"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
]


def test_other_settings_and_a_loss_of_precision_are_named(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    state = titan_state(spec_of())
    group = "optimizer.param_groups.tok_embeddings.weight"
    state |= {f"{group}.betas": (0.9, 0.99), f"{group}.eps": 1e-8, f"{group}.weight_decay": 0.3}
    step = saved(tmp_path, state)
    document = {"model": SMALL, "resources": {"device": "cpu"}}
    narrow = {"training": {"weight_dtype": "bfloat16"}, "optimizer": {"state_dtype": "bfloat16"}}
    convert(step, parse_job_spec(document | narrow), to=root_of(tmp_path), name="narrow")
    assert [record.getMessage() for record in caplog.records if record.levelname == "WARNING"] == [
        "optimizer.weight_decay: 0.3 in torchtitan, 0.1 in the spec",
        "optimizer.beta2: 0.99 in torchtitan, 0.95 in the spec",
        "training.weight_dtype: float32 in torchtitan, rounded to bfloat16 of the spec",
        "optimizer.state_dtype: float32 in torchtitan, rounded to bfloat16 of the spec",
    ]


def test_settings_that_cannot_be_compared_are_no_error(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    state = titan_state(spec_of())
    group = "optimizer.param_groups.tok_embeddings.weight"
    state |= {f"{group}.betas": torch.tensor([0.9, 0.95]), f"{group}.weight_decay": torch.ones(2)}
    state |= {f"{group}.eps": "tiny"}
    convert(saved(tmp_path, state), spec_of(), to=root_of(tmp_path), name="odd")
    assert [record.getMessage() for record in caplog.records if record.levelname == "WARNING"] == [
        f"optimizer.{name}: torchtitan's value is not compared, as it is no number"
        for name in ("eps", "weight_decay", "beta1", "beta2")
    ]
