"""What the trainer's benchmark measures on a GPU, as far as it can be known without one."""

import json

import pytest
import torch

from benchmarks.report import Line
from benchmarks.trainer import FLOAT8_GAIN, ON_CUDA, float8_gain, spec_of
from trainer.models.families import build_model
from trainyard.planner.plan import plan
from trainyard.spec.rules import check_job_spec
from trainyard.training.known_devices import Slot

H100 = Slot("cuda", "NVIDIA H100 80GB HBM3", 85_000_000_000)
ROOM = 4 * 2**30
"""For the context of CUDA, and what the planner does not know."""


@pytest.mark.parametrize("name", ON_CUDA)
def test_each_case_is_legal_and_fits_on_one_gpu_of_80_gb(name: str) -> None:
    spec = spec_of(ON_CUDA[name])
    check_job_spec(spec, slots=[H100])
    planned = plan(spec, slots=[H100])
    assert planned.memory.total + ROOM < H100.memory_bytes


def test_8b_is_measured_with_weights_and_moments_in_bfloat16() -> None:
    for name in ("compiled_8b", "float8_8b", "eager_8b"):
        spec = spec_of(ON_CUDA[name])
        assert {p.dtype for p in build_model(spec).parameters()} == {torch.bfloat16}
        assert spec.optimizer.state_dtype == "bfloat16"


@pytest.mark.parametrize(("float8", "passed"), [(1300.0, True), (1200.0, False)])
def test_the_gain_of_float8_is_a_figure_with_a_target(
    float8: float, passed: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    rates = {"float8_8b": float8, "compiled_8b": 1000.0, "compiled_1b": 9000.0}
    software = {"device": "H100", "cuda": "13.0", "cuda_driver": "590", "nccl": "2.30"}
    lines: dict[str, Line] = {
        name: {"benchmark": f"trainer_{name}_tokens_per_second", "figure": rate, **software}
        for name, rate in rates.items()
    }
    assert float8_gain(lines.values()) == passed
    line = json.loads(capsys.readouterr().out)
    assert (line["figure"], line["target"]) == (float8 / 1000, FLOAT8_GAIN)
    assert line["passed"] == passed
    del lines["compiled_8b"]
    assert float8_gain(lines.values())
    assert capsys.readouterr().out == ""
