"""Refusals before a byte of published weights is used: each names its difference."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from tests.trainer.hugging_face.weights import MODELS, ours
from trainer.errors import DataError
from trainer.hugging_face.config import config_of, differences
from trainer.hugging_face.folder import INDEX, WeightsFolder
from trainer.hugging_face.weight_names import published_name, shapes_of
from trainyard.training.architectures import ARCHITECTURES, Architecture, RopeScaling

LLAMA = MODELS["llama"]


def written(folder: Path, family: str, arch: Architecture, **config: Any) -> Path:
    """Write zeros as published weights in one file, with some fields of the config changed."""
    folder.mkdir()
    described = config_of(family, arch, seq_len=48, dtype="float32") | config
    (folder / "config.json").write_text(json.dumps(described))
    tensors = {published_name(name): torch.zeros(s) for name, s in shapes_of(arch).items()}
    save_file(tensors, folder / "model.safetensors")
    return folder


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_head_that_is_tied_and_differs_is_refused(dtype: torch.dtype, tmp_path: Path) -> None:
    family, arch = next(model for model in MODELS.values() if model[1].tied_embeddings)
    folder = written(tmp_path / "weights", family, arch)
    tensors = {published_name(name): torch.zeros(s) for name, s in shapes_of(arch).items()}
    head = torch.zeros(arch.vocab_size, arch.dim, dtype=dtype)
    for value in (0.0, 1.0):
        head[-1, -1] = value
        save_file({**tensors, "lm_head.weight": head}, folder / "model.safetensors")
        found = WeightsFolder(folder)
        found.check(family, arch)
        untied = replace(arch, tied_embeddings=False)
        if value == 0.0:
            found.check_tied_head(arch)
            with pytest.raises(DataError, match="tie_word_embeddings is True"):
                found.check(family, untied)
            continue
        with pytest.raises(DataError, match=r"lm_head\.weight differs from .*tied_embedd"):
            found.check_tied_head(arch)
        found.check(family, untied)
    written(tmp_path / "without", family, arch)
    WeightsFolder(tmp_path / "without").check_tied_head(arch)


@pytest.mark.parametrize("name", MODELS)
def test_names_and_shapes_are_those_of_the_model(name: str) -> None:
    family, arch = MODELS[name]
    assert shapes_of(arch) == {n: tuple(p.shape) for n, p in ours(family, arch).named_parameters()}


@pytest.mark.parametrize(
    ("family", "size"), [(f, size) for f, sizes in ARCHITECTURES.items() for size in sizes]
)
def test_a_config_of_ours_describes_the_model_it_was_made_of(family: str, size: str) -> None:
    arch = ARCHITECTURES[family][size]
    config = config_of(family, arch, seq_len=48, dtype="bfloat16")
    assert list(differences(config, family, arch)) == []
    other = Architecture(8, 1, 2, 1, 8, 300)
    found = list(differences(config, family, other))
    assert f"hidden_size is {arch.dim}, but model.dim is 8" in found
    assert len(found) >= 8


# As published with Llama-3.1-8B and Qwen3-0.6B, without fields that do not affect the shape.
PUBLISHED = {
    ("llama3", "8B"): {
        "model_type": "llama",
        "attention_bias": False,
        "hidden_act": "silu",
        "hidden_size": 4096,
        "intermediate_size": 14336,
        "max_position_embeddings": 131072,
        "mlp_bias": False,
        "num_attention_heads": 32,
        "num_hidden_layers": 32,
        "num_key_value_heads": 8,
        "rms_norm_eps": 1e-05,
        "rope_scaling": {
            "factor": 8.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 8192,
            "rope_type": "llama3",
        },
        "rope_theta": 500000.0,
        "tie_word_embeddings": False,
        "vocab_size": 128256,
    },
    ("qwen3", "0.6B"): {
        "model_type": "qwen3",
        "attention_bias": False,
        "head_dim": 128,
        "hidden_act": "silu",
        "hidden_size": 1024,
        "intermediate_size": 3072,
        "max_position_embeddings": 40960,
        "num_attention_heads": 16,
        "num_hidden_layers": 28,
        "num_key_value_heads": 8,
        "rms_norm_eps": 1e-06,
        "rope_scaling": None,
        "rope_theta": 1000000,
        "sliding_window": None,
        "tie_word_embeddings": True,
        "use_sliding_window": False,
        "vocab_size": 151936,
    },
}


@pytest.mark.parametrize(("family", "size"), PUBLISHED)
def test_a_published_config_is_that_of_the_size(family: str, size: str) -> None:
    config = PUBLISHED[family, size]
    assert list(differences(config, family, ARCHITECTURES[family][size])) == []


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"hidden_size": 128}, "hidden_size is 128, but model.dim is 64"),
        ({"rope_theta": 5e5}, "rope_theta is 500000.0, but model.rope_theta is 10000.0"),
        (
            {"rope_scaling": {"rope_type": "yarn", "factor": 4.0}},
            "{'rope_type': 'yarn', 'factor': 4.0}\", but model.rope_factor is absent",
        ),
        (
            {"rope_parameters": {"rope_type": "default", "rope_theta": 7.0}},
            "rope_theta is 7.0, but model.rope_theta is 10000.0",
        ),
        ({"tie_word_embeddings": True}, "is True, but model.tied_embeddings is False"),
        ({"model_type": "qwen3"}, "model_type is 'qwen3', but model.family='llama3' is 'llama'"),
        ({"attention_bias": True}, "attention_bias is True, but this model has only False"),
        ({"layer_types": ["sliding_attention"]}, "other layers than full_attention"),
    ],
)
def test_a_config_of_another_model_is_refused_field_by_field(
    tmp_path: Path, change: dict[str, Any], message: str
) -> None:
    folder = WeightsFolder(written(tmp_path / "weights", *LLAMA, **change))
    with pytest.raises(DataError) as refused:
        folder.check(*LLAMA)
    assert message in str(refused.value)


def test_scaling_that_differs_is_shown_in_full(tmp_path: Path) -> None:
    family, arch = MODELS["llama, scaled"]
    folder = WeightsFolder(written(tmp_path / "weights", family, arch))
    folder.check(family, arch)
    with pytest.raises(DataError, match=r"factor 8.0, low_freq.* but model.rope_factor is absent"):
        folder.check(*LLAMA)
    found = list(differences({"rope_scaling": {"type": "llama3"}}, family, arch))
    assert any("{'type': 'llama3'}" in difference for difference in found), RopeScaling


def _without(folder: Path, change: Callable[[dict[str, torch.Tensor]], None]) -> WeightsFolder:
    arch = LLAMA[1]
    tensors = {published_name(name): torch.zeros(s) for name, s in shapes_of(arch).items()}
    change(tensors)
    save_file(tensors, folder / "model.safetensors")
    return WeightsFolder(folder)


def test_missing_unexpected_and_misshapen_tensors_are_listed(tmp_path: Path) -> None:
    folder = written(tmp_path / "weights", *LLAMA)

    def change(tensors: dict[str, torch.Tensor]) -> None:
        del tensors["model.layers.1.mlp.up_proj.weight"]
        tensors["model.layers.0.self_attn.q_proj.bias"] = torch.zeros(64)
        tensors["model.norm.weight"] = torch.zeros(65)
        tensors["model.layers.0.self_attn.rotary_emb.inv_freq"] = torch.zeros(8)  # older files

    with pytest.raises(DataError) as refused:
        _without(folder, change).check(*LLAMA)
    text = str(refused.value)
    assert "1 tensors missing: model.layers.1.mlp.up_proj.weight" in text
    assert "1 tensors unexpected: model.layers.0.self_attn.q_proj.bias" in text
    assert "1 tensors of another shape: model.norm.weight (65,) instead of (64,)" in text


def test_a_tied_head_may_be_stored_twice(tmp_path: Path) -> None:
    family, arch = MODELS["qwen3, tied"]
    folder = written(tmp_path / "weights", family, arch)
    tensors = {published_name(name): torch.zeros(s) for name, s in shapes_of(arch).items()}
    save_file({**tensors, "lm_head.weight": torch.zeros(320, 64)}, folder / "model.safetensors")
    WeightsFolder(folder).check(family, arch)


@pytest.mark.parametrize(
    ("file", "content", "message"),
    [
        ("config.json", None, "config.json cannot be read: No such file"),
        ("config.json", "[", "config.json is no JSON"),
        ("config.json", "[]", "config.json is no JSON object"),
        ("model.safetensors", None, "model.safetensors is no safetensors file"),
        ("model.safetensors", "junk", "model.safetensors is no safetensors file"),
        ("model.safetensors.index.json", "{}", "does not say in which file each tensor lies"),
        (
            "model.safetensors.index.json",
            '{"weight_map": {"model.norm.weight": "../model.safetensors"}}',
            "does not say in which file each tensor lies",
        ),
    ],
)
def test_damaged_folders_are_refused(
    tmp_path: Path, file: str, content: str | None, message: str
) -> None:
    folder = written(tmp_path / "weights", *LLAMA)
    if content is None:
        (folder / file).unlink()
    else:
        (folder / file).write_text(content)
    with pytest.raises(DataError, match=message):
        WeightsFolder(folder)


def test_a_check_before_launch_needs_no_torch(tmp_path: Path) -> None:
    written(tmp_path / "weights", *LLAMA, vocab_size=321)
    run = tmp_path / "run"
    run.mkdir()
    shape = {"n_layers": 2, "n_kv_heads": 2, "ffn_dim": 96}
    model = {"initial_weights": "data:weights", **shape}
    (run / "spec.json").write_text(json.dumps({"model": model}))
    program = (
        "import sys, trainer.__main__ as main\n"
        f"sys.argv = ['trainer', 'check', {str(run)!r}, '--root', 'data={tmp_path}']\n"
        "code = main.main()\n"
        "assert 'torch' not in sys.modules\n"
        "sys.exit(code)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False
    )
    assert done.returncode == 1
    assert "vocab_size is 321, but model.vocab_size is 320" in done.stderr


@pytest.mark.parametrize("name", ["config.json", INDEX, "model-00002-of-00002.safetensors"])
def test_a_pointer_of_git_lfs_is_refused_by_name(tmp_path: Path, name: str) -> None:
    family, arch = LLAMA
    folder = written(tmp_path / "weights", family, arch, tie_word_embeddings=True)
    parts = [f"model-0000{number}-of-00002.safetensors" for number in (1, 2)]
    names = [published_name(each) for each in shapes_of(arch)]
    places = {each: parts[at % 2] for at, each in enumerate(names)}
    (folder / INDEX).write_text(json.dumps({"weight_map": places}))
    (folder / "model.safetensors").unlink()
    for part in parts:
        save_file({each: torch.zeros(1) for each in names if places[each] == part}, folder / part)
    digest = "4d" * 32
    (folder / name).write_text(
        f"version https://git-lfs.github.com/spec/v1\noid sha256:{digest}\nsize 987654321\n"
    )
    with pytest.raises(DataError) as caught:
        WeightsFolder(folder).check(family, arch)
    assert f"{name} is a pointer of Git LFS to a file of 987,654,321 bytes" in str(caught.value)
    assert caught.value.path == str(folder / name)
