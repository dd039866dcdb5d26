"""Flex attention of hub models, run without a compiler, equals their attention on CPUs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.attention import flex_attention as flex

from tests.trainer.models.hub.architectures import hub_spec, write_config
from trainer.models.families import build_model
from trainer.models.hub.attention import attention_scope, supports_flex
from trainer.models.initial_weights import init_weights
from trainer.models.own.own_model import OwnModel
from trainer.parallel.activation_checkpoint import checkpoint_activations
from trainyard.spec.job import parse_job_spec
from trainyard.spec.sections.parallelism import ActivationCheckpointSection

S, LAYERS = 32, 4
CAPPED = {"head_dim": 8, "sliding_window": 12, "attn_logit_softcapping": 0.5}
CASES: dict[str, tuple[dict[str, Any], int]] = {
    "mistral": ({}, LAYERS),
    "gemma3_text": ({}, LAYERS // 2),
    "gpt_oss": ({}, LAYERS),
    "gemma2": (CAPPED, LAYERS),
    "qwen3": ({}, 0),
}
"""Changes of a config, and the number of layers that need flex attention without documents."""
WITHIN = 1e-5


class TensorOnGpu(Tensor):
    """A tensor on a CPU whose `device` is a GPU: transformers refuses sinks on CPUs."""

    __torch_function__: Any = torch._C._disabled_torch_function_impl
    device = torch.device("cuda")


@dataclass
class UncompiledFlex:
    """Lets flex attention train on a CPU, and records its block masks."""

    masks: list[Any] = field(default_factory=list)

    def install(self, patch: pytest.MonkeyPatch) -> None:
        from transformers import masking_utils
        from transformers.integrations import flex_attention as integration

        forward = integration.flex_attention_forward

        def attend(
            module: nn.Module, query: Tensor, key: Tensor, value: Tensor, mask: Any, **options: Any
        ) -> Any:
            self.masks.append(mask)
            return forward(module, query.as_subclass(TensorOnGpu), key, value, mask, **options)

        def uncompiled(query: Tensor, *rest: Any, training: bool, **options: Any) -> Any:
            return flex.flex_attention(query.as_subclass(Tensor), *rest, **options)

        def block_mask(*, _compile: bool, **options: Any) -> Any:
            return flex.create_block_mask(**options)

        patch.setattr(integration, "flex_attention_forward", attend)
        patch.setattr(integration, "compile_friendly_flex_attention", uncompiled)
        patch.setattr(masking_utils, "create_block_mask", block_mask)
        # torch refuses gradients on CPUs, because its kernels for CPUs have none.
        patch.setattr(flex, "_validate_device", lambda *_: None)
        patch.setattr(flex, "_FLEX_ATTENTION_DISABLE_COMPILE_DEBUG", True)


@pytest.fixture
def uncompiled_flex() -> Iterator[UncompiledFlex]:
    found = UncompiledFlex()
    with pytest.MonkeyPatch.context() as patch:
        found.install(patch)
        yield found


@dataclass
class SmallHubModel:
    """A small model with weights, on the CPU."""

    whole: OwnModel
    tokens: Tensor

    def result(self, segments: Tensor | None, *, use_flex: bool) -> dict[str, Tensor]:
        """Return the logits, and the gradient of each parameter."""
        self.whole.net.uses_flex = lambda _x: use_flex
        logits = self.whole(self.tokens, segments_BS=segments)
        loss = F.cross_entropy(logits.flatten(0, 1), self.tokens.roll(-1, 1).flatten())
        named = dict(self.whole.named_parameters())
        gradients = torch.autograd.grad(loss, [*named.values()])
        return {"logits": logits.detach(), **dict(zip(named, gradients, strict=True))}


Build = Callable[..., SmallHubModel]


@pytest.fixture
def build(tmp_path: Path) -> Build:
    def built(kind: str, **config: Any) -> SmallHubModel:
        spec = parse_job_spec(hub_spec(write_config(tmp_path / "model", kind, **config)))
        model = build_model(spec, {"data": str(tmp_path)})
        assert isinstance(model, OwnModel)
        model.to_empty(device="cpu")
        init_weights(model, 5)
        tokens = torch.randint(320, (2, S), generator=torch.Generator().manual_seed(1))
        return SmallHubModel(model.train(), tokens)

    return built


def documents(end: int = 9) -> Tensor:
    segments = torch.zeros(2, S, dtype=torch.int32)
    segments[0, end:], segments[1, 20:] = 1, 1
    return segments


@pytest.mark.parametrize("kind", CASES)
def test_flex_attention_computes_the_same(
    kind: str, build: Build, uncompiled_flex: UncompiledFlex
) -> None:
    config, layers = CASES[kind]
    model = build(kind, **config)
    for segments, expected_calls in ((None, layers), (documents(), LAYERS)):
        uncompiled_flex.masks.clear()
        expected = model.result(segments, use_flex=False)
        assert not uncompiled_flex.masks
        found = model.result(segments, use_flex=True)
        assert len(uncompiled_flex.masks) == expected_calls
        torch.testing.assert_close(found, expected, atol=WITHIN, rtol=0)


def test_the_end_of_a_document_changes_the_result(
    build: Build, uncompiled_flex: UncompiledFlex
) -> None:
    model = build("mistral")
    logits = model.result(documents(), use_flex=True)["logits"]
    other = model.result(documents(end=10), use_flex=True)["logits"]
    assert torch.equal(logits[0, :9], other[0, :9]), "attention is causal"
    assert (logits[0, 9:] - other[0, 9:]).abs().amax(-1).min() > 1e-3
    assert torch.equal(logits[1], other[1]), "documents of the second sequence are the same"
    assert uncompiled_flex.masks


@pytest.mark.parametrize("mode", ["full", "selective"])
def test_recomputation_computes_the_same(
    mode: Any, build: Build, uncompiled_flex: UncompiledFlex
) -> None:
    model = build("gpt_oss")
    expected = model.result(documents(), use_flex=True)
    section = ActivationCheckpointSection(mode=mode)
    checkpoint_activations(model.whole.layers.values(), section, own_randomness=False)
    uncompiled_flex.masks.clear()
    torch.testing.assert_close(model.result(documents(), use_flex=True), expected)
    assert len(uncompiled_flex.masks) == 2 * LAYERS


@pytest.mark.parametrize(
    ("kind", "config", "supported"),
    [
        ("mistral", {"head_dim": 16}, True),
        ("mistral", {"head_dim": 8}, False),
        ("phi", {}, False),
        ("phi", {"num_attention_heads": 2}, True),
        ("deepseek_v3", {"qk_nope_head_dim": 16, "qk_rope_head_dim": 16}, False),
        ("deepseek_v3", {"qk_rope_head_dim": 16, "v_head_dim": 16}, True),
        ("bloom", {"num_attention_heads": 2}, False),
    ],
)
def test_flex_attention_needs_its_kernels(
    kind: str, config: dict[str, Any], supported: bool, build: Build
) -> None:
    assert supports_flex(build(kind, **config).whole.net.causal) == supported


def test_a_window_as_long_as_the_sequence_needs_a_mask(
    build: Build, uncompiled_flex: UncompiledFlex
) -> None:
    for window, layers in ((S, LAYERS), (S + 1, 0)):
        uncompiled_flex.masks.clear()
        build("mistral", sliding_window=window).result(None, use_flex=True)
        assert len(uncompiled_flex.masks) == layers


def test_a_block_mask_reads_no_value(build: Build, uncompiled_flex: UncompiledFlex) -> None:
    """A tensor on the meta device has no values, so a read fails."""
    from transformers.masking_utils import create_sliding_window_causal_mask

    config = build("mistral").whole.net.causal.config
    ones, x = torch.ones(2, S, dtype=torch.bool, device="meta"), torch.ones(2, S, 32, device="meta")
    with attention_scope(documents().to("meta"), flex=True, field="x"):
        mask = create_sliding_window_causal_mask(config, x, ones, past_key_values=None)
    assert isinstance(mask, flex.BlockMask)
    assert mask.kv_indices.is_meta
