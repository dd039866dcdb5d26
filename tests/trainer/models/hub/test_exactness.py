"""Architectures that cannot train exactly are refused before the ranks start."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from tests.trainer.models.hub.architectures import (
    ARCHITECTURES,
    hub_spec,
    save_published,
    write_config,
)
from tests.trainer.models.hub.test_published_weights import loading
from trainer.errors import DataError, LaunchError
from trainer.hugging_face.load import open_weights
from trainer.models.families import build_model
from trainer.models.hub.causal_model import CausalModel, load_model
from trainer.models.hub.folder import HubFolder
from trainyard.spec.job import parse_job_spec


def model_of(folder: Path) -> CausalModel:
    return load_model(HubFolder(folder / "model", "model.hugging_face", remote_code=False))


@pytest.mark.parametrize("kind", [*ARCHITECTURES, "llama", "qwen2", "gemma2", "gpt_neox"])
def test_causal_attention_without_draws_is_exact(kind: str, tmp_path: Path) -> None:
    write_config(tmp_path / "model", kind)
    model_of(tmp_path).check_exactness(draws=True)


def test_positions_that_depend_on_the_longest_sequence_are_exact(tmp_path: Path) -> None:
    rope = {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 1e4}
    write_config(tmp_path / "model", "llama", rope_parameters=rope)
    model_of(tmp_path).check_exactness(draws=True)


@pytest.mark.parametrize(
    ("kind", "config", "message"),
    [
        ("mamba", {}, r"no attention \(linear_attention\)"),
        ("lfm2", {"layer_types": ["conv", "full_attention"] * 2}, r"no attention \(conv\)"),
        ("bloom", {}, "BloomBlock does not attend"),
        ("gptj", {"n_head": 4, "rotary_dim": 4}, "does not use AttentionInterface"),
        ("llama", {"is_causal": False}, "its mask shows later tokens"),
        ("gemma", {"use_bidirectional_attention": True}, "later tokens"),
        ("doge", {}, "DogeAttention makes a mask of its own"),
        ("mixtral", {"router_jitter_noise": 0.3}, r"random numbers by aten\.uniform_"),
        ("apertus", {}, r"act_fn\.alpha_p has an initial value of an unknown kind"),
        ("jetmoe", {}, "forward fails on the meta device"),
    ],
)
def test_other_architectures_are_refused(
    kind: str, config: dict[str, Any], message: str, tmp_path: Path
) -> None:
    write_config(tmp_path / "model", kind, **config)
    with pytest.raises(LaunchError, match=message):
        model_of(tmp_path).check_exactness(draws=True)


@pytest.mark.parametrize(
    ("kind", "config", "parameter"),
    [
        ("phi", {"qk_layernorm": True}, "self_attn.q_layernorm.weight"),
        ("apertus", {}, "mlp.act_fn.alpha_p"),
        ("cohere", {"use_qk_norm": True}, "self_attn.q_norm.weight"),
    ],
)
def test_a_parameter_that_sees_a_part_of_the_features_needs_a_style(
    kind: str, config: dict[str, Any], parameter: str, tmp_path: Path
) -> None:
    write_config(tmp_path / "model", kind, **config)
    with pytest.raises(LaunchError, match=rf"no style for model\.layers\.0\.{parameter}"):
        model_of(tmp_path).tensor_parallel_plan(loss_parallel=False)


def test_rates_of_other_heads_are_ignored(tmp_path: Path) -> None:
    write_config(tmp_path / "model", "gpt_neox", classifier_dropout=0.1)
    model_of(tmp_path)


def test_a_table_of_positions_limits_the_sequence(tmp_path: Path) -> None:
    none = {"attn_pdrop": 0.0, "resid_pdrop": 0.0, "embd_pdrop": 0.0}
    shape = write_config(tmp_path / "model", "gpt2", max_position_embeddings=16, **none)
    spec = parse_job_spec(hub_spec(shape))
    with pytest.raises(LaunchError, match="has 16 positions; legal: up to 16"):
        build_model(spec, {"data": str(tmp_path)})


def test_another_config_file_is_refused(tmp_path: Path) -> None:
    write_config(tmp_path / "model", "mistral")
    path = tmp_path / "model" / "config.json"
    named = {"configuration_files": ["config.4.0.0.json"]}
    path.write_text(json.dumps(json.loads(path.read_text()) | named))
    with pytest.raises(LaunchError, match="configuration_files"):
        model_of(tmp_path)


def test_weights_of_another_dtype_are_refused(tmp_path: Path) -> None:
    save_published(tmp_path / "weights", "mistral")
    spec, path = loading(tmp_path, "mistral"), tmp_path / "weights" / "model.safetensors"
    name = "model.layers.0.self_attn.q_proj.weight"
    tensors = load_file(path)
    save_file({**tensors, name: tensors[name].to(torch.int8)}, path, metadata={"format": "pt"})
    with pytest.raises(DataError, match=rf"other than float32.*{name} \(I8\)"):
        open_weights(spec, {"data": str(tmp_path)})


def test_weights_with_other_settings_are_refused(tmp_path: Path) -> None:
    save_published(tmp_path / "weights", "mistral")
    spec = loading(tmp_path, "mistral")
    open_weights(spec, {"data": str(tmp_path)})
    path = tmp_path / "weights" / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"rms_norm_eps": 0.5}))
    with pytest.raises(DataError, match=r"rms_norm_eps is 0\.5, but 1e-06 in model.hugging_face"):
        open_weights(spec, {"data": str(tmp_path)})
