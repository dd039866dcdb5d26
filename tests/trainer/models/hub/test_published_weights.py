"""Weights of hub models in the format of `transformers`, in both directions."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from tests.trainer.models.hub.architectures import (
    ARCHITECTURES,
    ROWS,
    hub_spec,
    save_published,
    write_config,
)
from trainer.errors import DataError
from trainer.hugging_face.exported_model import HubExport
from trainer.hugging_face.load import open_weights, read_weights
from trainer.models.families import build_model
from trainer.models.hub.folder import HubFolder
from trainer.models.initial_weights import init_weights
from trainyard.spec.job import JobSpec, parse_job_spec

WITHIN = 1e-5


def loading(folder: Path, kind: str, **config: Any) -> JobSpec:
    """Return the spec of a job that starts from the weights in `data:weights`."""
    spec = hub_spec(write_config(folder / "model", kind, **config))
    spec["model"]["initial_weights"] = "data:weights"
    return parse_job_spec(spec)


@pytest.mark.parametrize("kind", ARCHITECTURES)
def test_a_model_of_transformers_gives_the_same_logits(kind: str, tmp_path: Path) -> None:
    theirs = save_published(tmp_path / "weights", kind)
    roots = {"data": str(tmp_path)}
    spec = loading(tmp_path, kind)
    model = build_model(spec, roots)
    model.to_empty(device="cpu")
    init_weights(model, 1, draws=False)
    weights = open_weights(spec, roots)
    weights.check_ties(spec)
    read_weights(model, weights)
    tokens = torch.randint(ROWS, (2, 32), generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        difference = model.eval()(tokens) - theirs(tokens).logits
    assert difference.abs().max() < WITHIN


@pytest.mark.parametrize("kind", ARCHITECTURES)
def test_transformers_reads_what_an_export_writes(kind: str, tmp_path: Path) -> None:
    from transformers import AutoModelForCausalLM

    theirs = save_published(tmp_path / "weights", kind)
    write_config(tmp_path / "model", kind)
    held = theirs.state_dict()
    folder = HubFolder(tmp_path / "model", "model.hugging_face", remote_code=False)
    model = HubExport(folder, stored=torch.float32)
    tensors: dict[str, torch.Tensor] = {}
    for name in model.kinds:
        tensors |= model.published(name, held[name.removeprefix("net.causal.")])
    of_library = load_file(tmp_path / "weights" / "model.safetensors")
    assert tensors.keys() == of_library.keys(), "the published names"
    assert all(torch.equal(tensors[name], of_library[name]) for name in tensors)
    out = tmp_path / "out"
    out.mkdir()
    save_file(tensors, out / "model.safetensors", metadata={"format": "pt"})
    model.write_config(out, dtype="float32", ids=None)
    read = AutoModelForCausalLM.from_pretrained(out, dtype=torch.float32).state_dict()
    assert all(torch.equal(read[name], tensor) for name, tensor in held.items())


def test_other_weights_are_refused_by_name(tmp_path: Path) -> None:
    roots, path = {"data": str(tmp_path)}, tmp_path / "weights" / "model.safetensors"
    save_published(tmp_path / "weights", "mixtral")
    spec = loading(tmp_path, "mixtral")
    tensors = load_file(path)
    expert = "model.layers.1.block_sparse_moe.experts.2.w1.weight"
    for change, message in (
        ({"model.norm.weight": None}, "1 tensors missing: model.norm.weight"),
        ({"model.other": torch.zeros(2)}, "1 tensors unexpected: model.other"),
        ({expert: None}, "of another shape: model.layers.1.mlp.experts.gate_up_proj"),
        ({expert: torch.zeros(3, 32)}, "of another shape: model.layers.1.mlp.experts.gate_up"),
    ):
        changed = {k: v for k, v in {**tensors, **change}.items() if v is not None}
        save_file(changed, path, metadata={"format": "pt"})
        with pytest.raises(DataError, match=message):
            open_weights(spec, roots)


def test_a_second_head_is_refused_if_it_differs(tmp_path: Path) -> None:
    roots, path = {"data": str(tmp_path)}, tmp_path / "weights" / "model.safetensors"
    save_published(tmp_path / "weights", "gemma3_text")
    spec = loading(tmp_path, "gemma3_text")
    tensors = load_file(path)
    save_file({**tensors, "lm_head.weight": tensors["model.embed_tokens.weight"] + 1}, path)
    weights = open_weights(spec, roots)
    with pytest.raises(DataError, match="differs from model"):
        weights.check_ties(spec)
