"""The presets fit their hardware, and their small twins train here."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path
from typing import Any

import pytest

from tests.trainer.ranks import run_ranks
from tests.trainer.runs import Attempt, Meddling, train_rank
from trainyard.planner.plan import plan
from trainyard.spec.job import JobSpec, parse_job_spec
from trainyard.spec.rules import check_new_job
from trainyard.training.known_devices import Slot, known_device

ROOT = Path(__file__).resolve().parents[2]
PRESETS = ROOT / "examples" / "presets"
HARDWARE = {
    "up_to_10b": "NVIDIA H100 80GB HBM3",
    "from_10b_to_100b": "NVIDIA H200",
    "over_100b": "NVIDIA H100 80GB HBM3",
    "long_context": "NVIDIA H100 80GB HBM3",
}
TWINS = [
    name if name != "over_100b" else pytest.param(name, marks=pytest.mark.slow) for name in HARDWARE
]


def document(name: str) -> dict[str, Any]:
    return tomllib.loads((PRESETS / f"{name}.toml").read_text())


def spec_of(name: str) -> JobSpec:
    return parse_job_spec(document(name))


def rows_of_the_page() -> dict[str, list[str]]:
    """Cells of each row of the page's table, by the preset in its first cell."""
    lines = (ROOT / "docs" / "presets.md").read_text().splitlines()
    cells = [line.strip("| ").split(" | ") for line in lines if line.startswith("| `")]
    return {first.strip("`").removesuffix(".toml"): rest for first, *rest in cells}


def test_every_file_is_tried_here_and_named_in_the_docs() -> None:
    names = {path.stem.removesuffix(".debug") for path in PRESETS.glob("*.toml")}
    assert names == set(HARDWARE)
    assert set(rows_of_the_page()) == names


@pytest.mark.parametrize("name", HARDWARE)
def test_a_preset_fits_the_gpus_that_it_names(name: str) -> None:
    device = known_device(HARDWARE[name])
    assert device is not None
    text = (PRESETS / f"{name}.toml").read_text()
    assert f"{device.name.split()[0]}" in text.split("name =")[0]
    planned = plan(spec_of(name), slots=[Slot("cuda", HARDWARE[name], device.memory_bytes)])
    assert planned.fits
    assert planned.warnings == ()
    fullest_rank = rows_of_the_page()[name][2]
    assert fullest_rank == f"{planned.memory.total / 2**30:.1f} GiB"


@pytest.mark.parametrize("name", HARDWARE)
def test_a_twin_runs_the_same_way_in_small(name: str) -> None:
    preset, twin = spec_of(name), spec_of(f"{name}.debug")

    def how(spec: JobSpec) -> dict[str, Any]:
        axes = spec.layout()
        return {
            "axes": {axis for axis, ranks in axes.model_dump().items() if ranks > 1},
            "schedule": spec.parallelism.pp_schedule,
            "recompute": spec.activation_checkpoint.mode,
            "compile": spec.compile.enabled,
            "quantization": spec.quantization,
            "document_masks": spec.data.document_masks,
        }

    assert how(twin) == how(preset)
    plan(twin, slots=[Slot("cpu", "any", 2**30)])
    check_new_job(twin)


@pytest.mark.parametrize("name", TWINS)
def test_a_twin_trains(name: str, tmp_path: Path) -> None:
    content = document(f"{name}.debug")
    content["training"]["steps"] = 5
    (tmp_path / "spec.json").write_text(json.dumps(content))
    world_size = content["resources"]["world_size"]
    run_ranks(
        world_size, train_rank, str(tmp_path), Meddling(), initialize=False, timeout_seconds=300
    )
    attempt = Attempt(tmp_path)
    losses = attempt.values("train/loss")
    assert attempt.outcome.outcome == "succeeded"
    assert losses[5] < losses[1]
