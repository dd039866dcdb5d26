"""Weights of hub models in the format of `transformers`, in both directions."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from tests.trainer.models.hub.architectures import (
    ARCHITECTURES,
    ROWS,
    SHAPE,
    hub_job,
    hub_spec,
    write_config,
)
from tests.trainer.runs import JOB
from trainer.data.tokenizer import ByteTokenizer
from trainer.errors import DataError
from trainer.hugging_face.export import export
from trainer.hugging_face.exported_model import HubExport
from trainer.hugging_face.load import open_weights, read_weights
from trainer.hugging_face.tokenizer import ByteFiles
from trainer.models.families import build_model
from trainer.models.hub.folder import HubFolder
from trainer.models.initial_weights import init_weights
from trainer.sample import generate, load_weights
from trainyard.run.checkpoints.checkpoint_names import checkpoint_path
from trainyard.spec.job import JobSpec, parse_job_spec
from trainyard.spec.layout import Layout

WITHIN = 1e-5


def published(folder: Path, kind: str, **config: Any) -> Any:
    """Write a random model by `transformers`; return it."""
    from transformers import AutoConfig, AutoModelForCausalLM

    torch.manual_seed(3)
    settings = AutoConfig.for_model(kind, **{**SHAPE, **ARCHITECTURES[kind], **config})
    auto: Any = AutoModelForCausalLM  # its functions have no types
    model = auto.from_config(settings, dtype=torch.float32).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter), alpha=0.02)
        for name, buffer in model.named_buffers():
            if name.endswith("e_score_correction_bias"):
                buffer.add_(torch.randn_like(buffer))
    model.save_pretrained(folder)
    return model


def loading(folder: Path, kind: str, **config: Any) -> JobSpec:
    """Return the spec of a job that starts from the weights in `data:weights`."""
    spec = hub_spec(write_config(folder / "model", kind, **config))
    spec["model"]["initial_weights"] = "data:weights"
    return parse_job_spec(spec)


@pytest.mark.parametrize("kind", ARCHITECTURES)
def test_a_model_of_transformers_gives_the_same_logits(kind: str, tmp_path: Path) -> None:
    theirs = published(tmp_path / "weights", kind)
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

    theirs = published(tmp_path / "weights", kind)
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
    published(tmp_path / "weights", "mixtral")
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
    published(tmp_path / "weights", "gemma3_text")
    spec = loading(tmp_path, "gemma3_text")
    tensors = load_file(path)
    save_file({**tensors, "lm_head.weight": tensors["model.embed_tokens.weight"] + 1}, path)
    weights = open_weights(spec, roots)
    with pytest.raises(DataError, match="differs from model"):
        weights.check_ties(spec)


def test_a_trained_checkpoint_generates_the_same_text(tmp_path: Path) -> None:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    job = hub_job(tmp_path, "mixtral")
    published(tmp_path / "data" / "weights", "mixtral")
    job.spec["model"]["initial_weights"] = "data:weights"
    attempt = job.launch(1, Layout(dp_shard=2))
    assert attempt.outcome.outcome == "succeeded"
    assert [event.kind for event in attempt.events].count("weights_loaded") == 1
    checkpoint = job.storage / checkpoint_path(JOB, 1, 4)
    roots = {"data": str(tmp_path / "data")}
    export(checkpoint, tmp_path / "out", tokenizer=ByteFiles(), roots=roots)
    config = json.loads((tmp_path / "out" / "config.json").read_text())
    assert (config["dtype"], config["model_type"]) == ("float32", "mixtral")
    model = load_weights(parse_job_spec(job.spec), checkpoint, roots)
    prompt = "sheep "
    ours = generate(model, ByteTokenizer(), prompt, tokens=20, temperature=0, seed=0)
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "out")
    theirs: Any = AutoModelForCausalLM.from_pretrained(tmp_path / "out", dtype=torch.float32)
    given = tokenizer(prompt, return_tensors="pt")
    line = theirs.generate(**given, max_new_tokens=20, do_sample=False)
    assert tokenizer.decode(line[0], skip_special_tokens=True) == ours.text
