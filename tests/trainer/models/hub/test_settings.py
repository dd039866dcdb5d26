"""Settings of hub models: documents, dropout, precision and recomputation."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from tests.trainer.models.hub.architectures import ARCHITECTURES, hub_spec, write_config
from tests.trainer.models.hub.training import Case, courses_on
from trainer.errors import LaunchError
from trainer.models.families import build_model
from trainer.models.initial_weights import init_weights
from trainer.models.own.own_model import OwnModel
from trainer.models.stateless_rng import sequence_keys
from trainyard.spec.job import parse_job_spec
from trainyard.spec.layout import Layout

DROPOUT = {"resid_pdrop": 0.1, "embd_pdrop": 0.2}
MASKED = {"data": {"document_masks": True}}
COMPILED = {"compile": {"enabled": True, "backend": "aot_eager"}}
FULL = {"activation_checkpoint": {"mode": "full"}}
CASES: dict[str, Case] = {
    "dropout": ("phi", DROPOUT, {}),
    "dropout, recomputed": ("phi", DROPOUT, FULL),
    "experts, recomputed": ("mixtral", {}, FULL),
    "documents, eager": ("gpt_oss", {}, MASKED),
    "documents": ("gemma3_text", {}, MASKED),
    "bfloat16": ("deepseek_v3", {}, {"training": {"param_dtype": "bfloat16"}}),
}


def built(folder: Path, kind: str, **config: Any) -> OwnModel:
    spec = parse_job_spec(hub_spec(write_config(folder / "model", kind, **config)))
    model = build_model(spec, {"data": str(folder)})
    assert isinstance(model, OwnModel)
    model.to_empty(device="cpu")
    init_weights(model, 5)
    return model


def test_settings_compute_the_same_on_two_ranks() -> None:
    two, one = courses_on(Layout(dp_shard=2), CASES), courses_on(Layout(), CASES)
    for name, course in two.items():
        within = 2e-3 if name == "bfloat16" else 1e-6
        losses = [loss for loss, _ in one[name]]
        assert [loss for loss, _ in course] == pytest.approx(losses, rel=within), name
    assert two["dropout"] == two["dropout, recomputed"]
    assert one["documents"] != courses_on(Layout(), {"": ("gemma3_text", {}, {})})[""]


@pytest.mark.slow
def test_compiled_blocks_compute_the_same() -> None:
    cases: dict[str, Case] = {kind: (kind, {}, COMPILED) for kind in ("mistral", "mixtral")}
    plain: dict[str, Case] = {kind: (kind, {}, {}) for kind in cases}
    found, expected = courses_on(Layout(dp_shard=2), cases), courses_on(Layout(), plain)
    for name, course in found.items():
        losses = [loss for loss, _ in expected[name]]
        assert [loss for loss, _ in course] == pytest.approx(losses, rel=1e-6), name


@pytest.mark.parametrize("kind", ARCHITECTURES)
def test_a_document_gets_the_logits_that_it_gets_alone(kind: str, tmp_path: Path) -> None:
    model = built(tmp_path, kind).eval()
    tokens = torch.randint(320, (2, 32), generator=torch.Generator().manual_seed(1))
    segments = torch.zeros(2, 32, dtype=torch.int32)
    segments[0, 9:], segments[1, 20:] = 1, 1
    with torch.no_grad():
        packed = model(tokens, segments_BS=segments)
        for row, start in ((0, 9), (1, 20)):
            first = model(tokens[row : row + 1, :start])[0]
            assert torch.allclose(packed[row, :start], first, atol=1e-5)
            alone = model(tokens[row : row + 1, start:])[0]
            assert torch.allclose(packed[row, start:], alone, atol=1e-5)


def test_attention_without_a_mask_is_refused_with_documents(tmp_path: Path) -> None:
    model = built(tmp_path, "mistral")
    model.net.causal.model.forward = lambda **_: None
    with pytest.raises(LaunchError, match=r"takes no mask from data.document_masks; legal: false"):
        _forward_unmasked(model)


def _forward_unmasked(model: OwnModel) -> None:
    class Logits:
        logits = torch.zeros(1, 32, 320)

    model.net.causal.forward = lambda **_: Logits()
    model(torch.zeros(1, 32, dtype=torch.int64), segments_BS=torch.zeros(1, 32, dtype=torch.int32))


def test_dropout_is_keyed_by_sequence_and_call(tmp_path: Path) -> None:
    model = built(tmp_path, "phi", **DROPOUT).train()
    tokens = torch.randint(320, (2, 32), generator=torch.Generator().manual_seed(1))
    keys = sequence_keys(1, 1, torch.tensor([4, 7]))
    first, again = model(tokens, keys_B=keys), model(tokens, keys_B=keys)
    assert torch.equal(first, again)
    alone = model(tokens[1:], keys_B=keys[1:])
    assert torch.allclose(first[1:], alone, atol=1e-5)
    assert not torch.allclose(first, model(tokens, keys_B=keys.flip(0)), atol=1e-2)
    assert torch.equal(model(tokens), model.eval()(tokens)), "validation has no dropout"


def test_parameters_that_stay_float32_refuse_another_dtype(tmp_path: Path) -> None:
    spec = hub_spec(write_config(tmp_path / "model", "mistral"))
    from transformers import MistralForCausalLM

    half = parse_job_spec({**spec, "training": {**spec["training"], "param_dtype": "bfloat16"}})
    roots = {"data": str(tmp_path)}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(MistralForCausalLM, "_keep_in_fp32_modules_strict", ["o_proj"])
        build_model(parse_job_spec(spec), roots)
        with pytest.raises(LaunchError, match=r"keeps model.layers.0.self_attn.o_proj.weight in"):
            build_model(half, roots)
