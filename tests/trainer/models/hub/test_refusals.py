"""Folders and settings that a hub model does not support are refused by name."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.trainer.models.hub.architectures import hub_job, hub_spec, write_config
from trainer.check import check_run
from trainer.errors import LaunchError
from trainer.models.families import build_model
from trainyard.base.problems import SpecError
from trainyard.spec.job import parse_job_spec
from trainyard.spec.layout import Layout
from trainyard.spec.rules import check_job_spec, fields_with_code

REMOTE = """
import torch
from transformers import PreTrainedConfig, PreTrainedModel
from transformers.modeling_outputs import CausalLMOutput

class Config(PreTrainedConfig):
    model_type = "tiny"

class Model(PreTrainedModel):
    config_class = Config

    def __init__(self, config):
        super().__init__(config)
        self.tokens = torch.nn.Embedding(config.vocab_size, config.hidden_size)
        self.head = torch.nn.Linear(config.hidden_size, config.vocab_size)
        self.post_init()

    def get_output_embeddings(self):
        return self.head

    def forward(self, input_ids, attention_mask=None, use_cache=None):
        return CausalLMOutput(logits=self.head(self.tokens(input_ids)))
"""
AUTO_MAP = {"AutoConfig": "tiny.Config", "AutoModelForCausalLM": "tiny.Model"}
TINY = {
    "dim": 16,
    "n_layers": 2,
    "n_heads": 2,
    "n_kv_heads": 2,
    "head_dim": 8,
    "ffn_dim": 64,
    "vocab_size": 320,
    "tied_embeddings": False,
}


def build(folder: Path, kind: str = "mistral", config: Any = None, **sections: Any) -> Any:
    spec = hub_spec(write_config(folder / "model", kind, **(config or {})))
    given = {name: {**spec.get(name, {}), **new} for name, new in sections.items()}
    return build_model(parse_job_spec({**spec, **given}), {"data": str(folder)})


def write_remote(folder: Path) -> None:
    folder.mkdir()
    (folder / "tiny.py").write_text(REMOTE)
    content = {"model_type": "tiny", "hidden_size": 16, "vocab_size": 320, "auto_map": AUTO_MAP}
    (folder / "config.json").write_text(json.dumps(content))


def test_remote_code_runs_only_if_the_job_allows_it(tmp_path: Path) -> None:
    write_remote(tmp_path / "model")
    spec = hub_spec(TINY)
    with pytest.raises(LaunchError, match=r"names Python files in auto_map .*remote_code=true"):
        build_model(parse_job_spec(spec), {"data": str(tmp_path)})
    spec["model"]["remote_code"] = True
    allowed = parse_job_spec(spec)
    assert fields_with_code(allowed) == ("model.remote_code=true",)
    model = build_model(allowed, {"data": str(tmp_path)})
    assert next(name for name, _ in model.named_parameters()) == "net.causal.tokens.weight"
    content = json.loads((tmp_path / "model" / "config.json").read_text())
    content["auto_map"] = {"AutoConfig": "someone/model--tiny.Config"}
    (tmp_path / "model" / "config.json").write_text(json.dumps(content))
    with pytest.raises(LaunchError, match="names code of another repository"):
        build_model(allowed, {"data": str(tmp_path)})


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"output_router_logits": True}, "adds a loss that depends on the layout"),
        ({"quantization_config": {"quant_method": "fp8"}}, "so the weights are quantized"),
        ({"attention_dropout": 0.1}, r"attention_dropout=0.1 .*legal: attention_dropout=0"),
    ],
)
def test_a_config_is_refused_by_its_field(
    config: dict[str, Any], message: str, tmp_path: Path
) -> None:
    write_config(tmp_path / "model", "mixtral")
    path = tmp_path / "model" / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | config))
    spec = hub_spec(write_config(tmp_path / "other", "mixtral"))
    with pytest.raises(LaunchError, match=message):
        build_model(parse_job_spec(spec), {"data": str(tmp_path)})


def test_every_difference_from_the_spec_is_named(tmp_path: Path) -> None:
    with pytest.raises(LaunchError, match=r"is 32, but model.dim is 64; num_hidden_.* is 4, but"):
        build(tmp_path, model={"dim": 64, "n_layers": 2})


def test_a_shape_that_no_machine_holds_is_compared_and_not_built(tmp_path: Path) -> None:
    spec = hub_spec(write_config(tmp_path / "model", "mistral"))
    path = tmp_path / "model" / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"vocab_size": 2**62}))
    with pytest.raises(LaunchError, match=f"vocab_size is {2**62}, but model.vocab_size is"):
        build_model(parse_job_spec(spec), {"data": str(tmp_path)})


def test_a_model_of_several_models_is_refused(tmp_path: Path) -> None:
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text('{"model_type": "gemma3"}')
    spec = hub_spec(write_config(tmp_path / "other", "gemma3_text"))
    with pytest.raises(LaunchError, match="'gemma3' combines several models"):
        build_model(parse_job_spec(spec), {"data": str(tmp_path)})


@pytest.mark.parametrize(
    ("kind", "layout", "config", "message"),
    [
        ("gpt_oss", Layout(tp=2), {}, "publishes no plan for gpt_oss; legal: parallelism.tp=1"),
        ("mixtral", Layout(tp=2), {}, "style 'packed_colwise' for .*experts.gate_up_proj"),
        ("qwen3", Layout(tp=4), {}, r"tp=4 does not divide n_kv_heads=2|num_key_value_heads=2"),
        ("llama", Layout(pp=2), {}, "stages of llama were never compared"),
        ("gemma3_text", Layout(pp=2), {}, "embedding and head .* are one weight"),
        ("phi", Layout(pp=2), {"resid_pdrop": 0.1}, "resid_dropout .* parallelism.pp=2 does not"),
    ],
)
def test_a_layout_is_refused_before_ranks_start(
    kind: str, layout: Layout, config: dict[str, Any], message: str, tmp_path: Path
) -> None:
    job = hub_job(tmp_path, kind, config=config)
    with pytest.raises((LaunchError, SpecError), match=message):
        check_run(job.prepare(1, layout), roots={})


def test_fields_that_the_folder_defines_are_refused() -> None:
    spec = hub_spec({"dim": 32, "n_heads": 4, "n_kv_heads": 4})
    for changes, message in (
        ({"model": {"plans": ["tensor"]}}, r"plans=.* folder of model.hugging_face defines"),
        ({"model": {"rope_theta": 1e4}}, "legal: no rope_theta"),
        ({"model": {"dropout": 0.1}}, "legal: no dropout"),
        ({"parallelism": {"tp": 2, "sequence_parallel": True}}, "legal: sequence_parallel=false"),
    ):
        given = {name: {**spec[name], **new} for name, new in changes.items()}
        with pytest.raises(SpecError, match=message):
            check_job_spec(parse_job_spec({**spec, "resources": {"world_size": 2}, **given}))
