"""Jobs that start from published weights: on every layout, recorded, and never on a resume."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from tests.trainer.hugging_face.test_folder import written
from tests.trainer.hugging_face.weights import MODELS, SEQ_LEN, ours, randomize, section
from tests.trainer.ranks import RankError, run_ranks
from tests.trainer.runs import Meddling, SmallJob
from trainer.hugging_face.folder import WeightsFolder
from trainer.hugging_face.load import read_weights
from trainer.hugging_face.weight_names import published_name
from trainer.models.families import build_model
from trainer.parallel.mesh import build_mesh
from trainer.parallel.parallelize import parallelize
from trainer.storage.io_errors import file_digest
from trainyard.spec.job import JobSpec, parse_job_spec
from trainyard.spec.layout import Layout


def random_weights(folder: Path, name: str) -> Path:
    """Write a model with random weights as published, the tensors spread over two files."""
    family, arch = MODELS[name]
    written(folder, family, arch)
    model = ours(family, arch)
    randomize(model)
    tensors = {published_name(n): p.detach().clone() for n, p in model.named_parameters()}
    names = sorted(tensors)
    places = {n: f"model-{1 + i % 2:05}-of-00002.safetensors" for i, n in enumerate(names)}
    for file in set(places.values()):
        save_file({n: tensors[n] for n in names if places[n] == file}, folder / file)
    (folder / "model.safetensors").unlink()
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": places}))
    return folder


def _differing_weights(spec: JobSpec, layout: Layout, folder: Path) -> dict[str, int]:
    model = build_model(spec)
    parallelize(model, build_mesh(layout, "cpu"), spec=spec, layout=layout)
    model.to_empty(device="cpu")
    read_weights(model, WeightsFolder(folder))
    expected = {n: t for file in folder.glob("*.safetensors") for n, t in load_file(file).items()}
    return {
        name: int((p.full_tensor() != expected[published_name(name)]).sum())  # type: ignore[attr-defined]
        for name, p in model.named_parameters()
    }


@pytest.mark.parametrize("name", ["llama", "qwen3, tied"])
@pytest.mark.parametrize(
    "layout", [Layout(dp_shard=3), Layout(dp_replicate=2, dp_shard=2)], ids=str
)
def test_every_rank_reads_its_slices(name: str, layout: Layout, tmp_path: Path) -> None:
    folder = random_weights(tmp_path / "weights", name)
    spec = parse_job_spec({"model": section(*MODELS[name])})
    for differing in run_ranks(layout.world_size, _differing_weights, spec, layout, folder):
        assert set(differing.values()) == {0}, differing


def job(folder: Path, name: str = "qwen3") -> SmallJob:
    """Return a short job that starts from random weights."""
    made = SmallJob(folder).changed(
        folder,
        model={**section(*MODELS[name]), "dropout": 0.1, "initial_weights": "data:weights"},
        training={"steps": 4, "seq_len": SEQ_LEN},
        lr_schedule={"warmup_steps": 1},
        checkpoint={"interval_steps": 2},
    )
    random_weights(folder / "data" / "weights", name)
    return made


def test_a_job_starts_from_them_says_so_and_goes_on_without_them(tmp_path: Path) -> None:
    short = job(tmp_path)
    first = short.launch(1, Layout(dp_shard=2), Meddling(never_draws=True))
    (event,) = [e for e in first.events if e.kind == "weights_loaded"]
    assert event.data["place"] == "data:weights"
    weights = tmp_path / "data" / "weights"
    assert event.data["files"] == [
        {"path": path.name, "size": path.stat().st_size, "xxh3_128": file_digest(path)}
        for path in sorted(weights.iterdir())
    ]
    # The first step has the loss of the weights, not of a fresh model: ln(320) = 5.77.
    assert first.values("train/loss")[1] > 6

    for path in weights.iterdir():
        path.unlink()
    saved = {m.train_state.step: m for m in short.committed().values()}
    again = short.launch(2, Layout(), resume=saved[2])
    assert [e.kind for e in again.events if e.kind in {"weights_loaded", "resumed"}] == ["resumed"]
    assert again.values("train/loss")[4] == pytest.approx(first.values("train/loss")[4], rel=1e-5)


def test_weights_of_another_model_end_the_launch_on_every_rank(tmp_path: Path) -> None:
    short = job(tmp_path).changed(tmp_path, model={"n_layers": 3})
    with pytest.raises(RankError, match=r"num_hidden_layers is 2, but model\.n_layers is 3"):
        short.launch(1, Layout(dp_shard=2))


def test_weights_take_the_type_of_the_parameter(tmp_path: Path) -> None:
    family, arch = MODELS["llama"]
    folder = random_weights(tmp_path / "weights", "llama")
    for file in folder.glob("*.safetensors"):
        save_file({n: t.bfloat16() for n, t in load_file(file).items()}, file)
    model = ours(family, arch)
    read_weights(model, WeightsFolder(folder))
    assert {p.dtype for p in model.parameters()} == {torch.float32}
    reference = ours(family, arch)
    randomize(reference)
    wanted = dict(reference.named_parameters())
    for name, parameter in model.named_parameters():
        assert torch.equal(parameter, wanted[name].bfloat16().float())
