"""Counts of hub models, which `python -m trainer describe` prints for the planner."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.trainer.models.hub.architectures import ARCHITECTURES, hub_spec, write_config
from trainer.errors import LaunchError
from trainer.models.families import build_model
from trainer.models.hub.causal_model import load_model
from trainer.models.hub.counts import SavedBytes
from trainer.models.hub.describe import describe, main
from trainer.models.hub.folder import HubFolder
from trainyard.planner.activations import activations_of_a_block
from trainyard.planner.parameters import count_parameters
from trainyard.planner.plan import plan
from trainyard.spec.job import parse_job_spec
from trainyard.spec.layout import Layout
from trainyard.training.flops import training_flops_per_token

BFLOAT16 = {"training": {"param_dtype": "bfloat16"}}


def described(folder: Path, kind: str, **config: Any) -> dict[str, Any]:
    write_config(folder / "model", kind, **config)
    section: dict[str, Any] = describe("data:model", {"data": str(folder)})["model"]
    return section


def hub_folder(folder: Path) -> HubFolder:
    return HubFolder(folder / "model", "model.hugging_face", remote_code=False)


@pytest.mark.parametrize("kind", ARCHITECTURES)
def test_each_parameter_is_counted_once(kind: str, tmp_path: Path) -> None:
    counted = described(tmp_path, kind)["counted"]
    model = load_model(hub_folder(tmp_path))
    names = ("embedding", "attention", "feed_forward", "norms", "final_norm", "head")
    assert sum(counted[name] for name in names) == sum(p.numel() for p in model.parameters())
    assert all(counted[name] > 0 for name in names if name not in {"head", "norms"})
    assert (counted["head"] == 0) == (kind == "gemma3_text")


@pytest.mark.parametrize(("kind", "family"), [("llama", "llama3"), ("qwen3", "qwen3")])
@pytest.mark.parametrize("tied", [False, True])
def test_the_counts_of_a_family_equal_its_formulas(
    kind: str, family: str, tied: bool, tmp_path: Path
) -> None:
    section = described(tmp_path, kind, tie_word_embeddings=tied)
    counted = parse_job_spec({"name": "a", "model": section, **BFLOAT16})
    shape = {k: v for k, v in section.items() if k not in {"hugging_face", "counted"}}
    family_spec = parse_job_spec({"name": "a", "model": {"family": family, **shape}, **BFLOAT16})
    ours, theirs = (
        count_parameters(counted.architecture),
        count_parameters(family_spec.architecture),
    )
    assert ours.total == theirs.total
    assert (ours.embedding, ours.head) == (theirs.embedding, theirs.head)
    assert ours.attention + ours.norms == theirs.attention + theirs.norms  # theirs has qk norms
    for seq_len in (64, 4096):
        expected = training_flops_per_token(family_spec.architecture, seq_len)
        assert training_flops_per_token(counted.architecture, seq_len) == expected
    saved = activations_of_a_block(counted, Layout(), tokens=4096)
    # Norms of transformers are several operations in float32, which save more than one kernel.
    assert 1 < saved / activations_of_a_block(family_spec, Layout(), tokens=4096) < 1.8


def test_only_the_chosen_experts_and_the_window_count_as_work(tmp_path: Path) -> None:
    two = described(tmp_path, "mixtral")["counted"]
    four = described(tmp_path, "mixtral", num_local_experts=8)["counted"]
    assert four["feed_forward"] > 1.9 * two["feed_forward"]
    routers = 4 * 4 * 32  # four more outputs in each of four blocks
    assert four["active"] - two["active"] == routers
    expert, chosen = 3 * 32 * 48, 2
    assert two["active"] == two["attention"] + 4 * (chosen * expert + 4 * 32)

    sliding = described(tmp_path, "gpt_oss")["counted"]
    assert (sliding["attention_width"], sliding["sliding_width"], sliding["window"]) == (64, 64, 12)
    mixed = described(tmp_path, "deepseek_v3")["counted"]
    assert mixed["attention_width"] == 4 * 4 * (16 + 8) // 2  # keys are wider than values


# With other architectures a CPU has no fused kernel: it saves all scores.
@pytest.mark.parametrize("kind", ["mistral", "gemma3_text", "qwen3", "olmo2", "mixtral"])
def test_saved_bytes_equal_those_of_a_forward_pass(kind: str, tmp_path: Path) -> None:
    counted = described(tmp_path, kind, sliding_window=10_000)["counted"]
    model = load_model(hub_folder(tmp_path))
    causal = model.causal.to_empty(device="cpu").to(torch.bfloat16)
    torch.manual_seed(1)
    for parameter in causal.parameters():
        torch.nn.init.normal_(parameter, std=0.02)
    saved, tokens = SavedBytes(causal), 256
    with saved.within(model.blocks):
        causal(input_ids=torch.randint(0, 256, (1, tokens)), use_cache=False)
    assert saved.bytes / tokens == pytest.approx(counted["saved_bytes"], rel=0.1)


def test_the_largest_experts_need_no_memory(tmp_path: Path) -> None:
    """The experts of one layer have 2 TB in float32."""
    large = {"n_routed_experts": 2**14, "moe_intermediate_size": 2048, "hidden_size": 7168}
    counted = described(tmp_path, "deepseek_v3", **large)["counted"]
    assert counted["feed_forward"] > 3 * 3 * 2**14 * 2048 * 7168


def test_a_job_with_counts_is_planned_from_them(tmp_path: Path) -> None:
    section = described(tmp_path, "mixtral")
    spec = {**hub_spec({}), "model": section}
    without = {**section}
    counted = without.pop("counted")
    planned, guessed = plan(parse_job_spec(spec)), plan(parse_job_spec({**spec, "model": without}))
    assert planned.parameters.total == 74_240 + 12_288 + 256 + 32 + 2 * 10_240
    assert guessed.parameters.total < planned.parameters.total
    assert planned.memory.weights > guessed.memory.weights
    assert not [each for each in planned.warnings if each.pointer == "/model/hugging_face"]
    warned = [each.detail for each in guessed.warnings if each.pointer == "/model/hugging_face"]
    assert "python -m trainer describe data:model" in warned[0]
    build_model(parse_job_spec(spec), {"data": str(tmp_path)})
    other = {**spec, "model": {**section, "counted": {**counted, "norms": 255}}}
    with pytest.raises(LaunchError, match=r"256 parameters of the kind norms, but .*norms is 255"):
        build_model(parse_job_spec(other), {"data": str(tmp_path)})


def test_the_command_prints_toml_and_json(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    section = described(tmp_path, "mistral")
    words = ["data:model", "--root", f"data={tmp_path}"]
    assert main(words) == 0
    assert tomllib.loads(capsys.readouterr().out) == {"model": section}
    for name in ("model-00001-of-00002.safetensors", "tokenizer.json"):
        (tmp_path / "model" / name).touch()
    assert main([*words, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found == {
        "model": {**section, "initial_weights": "data:model"},
        "data": {"tokenizer": "huggingface", "tokenizer_path": "data:model"},
    }
    assert main(words) == 0
    assert tomllib.loads(capsys.readouterr().out) == found
    for place, message in (
        ("data:absent", "data:absent"),
        (str(tmp_path / "model"), "is not below a storage root"),
    ):
        assert main([place, "--root", f"data={tmp_path}"]) == 1
        error = capsys.readouterr().err
        assert message in error
        assert "Traceback" not in error
