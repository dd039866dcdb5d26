"""Quantized products change the loss only by rounding, and do not affect checkpoints."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn

from tests.trainer.ranks import run_ranks
from tests.trainer.runs import Attempt, Meddling, SmallJob
from trainer.checkpoint.tensors import train_tensors
from trainer.errors import LaunchError
from trainer.loop.optimizer import build_optimizer, materialize_state
from trainer.models.families import build_model
from trainer.models.initial_weights import init_weights
from trainer.parallel.compile import compile_blocks
from trainer.parallel.mesh import build_mesh
from trainer.parallel.parallelize import parallelize
from trainer.parallel.quantize import (
    keep_scales_fresh,
    quantize_linear_layers,
    refresh_scales,
    refuse_unable,
)
from trainyard.spec.job import JobSpec, parse_job_spec
from trainyard.spec.layout import Layout
from trainyard.spec.sections.parallelism import CompileSection

RECIPES = ("float8_tensorwise", "float8_rowwise", "float8_rowwise_with_gw_hp", "mxfp8")
TOLERANCE = 5e-3
"""Relative, of the loss over eight steps; float8 has 4 significant bits or 3."""


def make_spec(recipe: str, **sections: Any) -> JobSpec:
    return parse_job_spec(
        {
            "model": {"n_layers": 2, "dim": 128, "n_heads": 4, "n_kv_heads": 2, "ffn_dim": 192},
            "training": {"seq_len": 64, "micro_batch_size": 4, "global_batch_size": 4},
            "optimizer": {"lr": 1e-3},
            "quantization": {"recipe": recipe, **sections.pop("quantization", {})},
            **sections,
        }
    )


def _losses(specs: list[JobSpec], layout: Layout) -> list[tuple[list[float], set[str]]]:
    """Train on the same tokens under each spec; return losses and saved types."""
    courses = []
    tokens_BT = torch.randint(0, 256, (4, 65), generator=torch.Generator().manual_seed(0))
    for spec in specs:
        model = build_model(spec)
        parallelize(model, build_mesh(layout, "cpu"), spec=spec, layout=layout)
        model.to_empty(device="cpu")
        init_weights(model, 0)
        refresh_scales(model)
        optimizer = build_optimizer(model, spec)
        materialize_state(optimizer)
        keep_scales_fresh(model, optimizer)
        mine_BT = tokens_BT.chunk(layout.dp)[dist.get_rank() // layout.tp]
        losses = []
        for _ in range(8):
            loss = model(mine_BT[:, :-1], mine_BT[:, 1:]) / 256
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            losses.append(loss.detach())
        total = torch.stack(losses) / layout.tp
        dist.all_reduce(total)
        tensors = train_tensors(model, optimizer).values()
        types = {type(getattr(t, "_local_tensor", t)).__name__ for t in tensors}
        courses.append((total.tolist(), types))
    return courses


@pytest.mark.parametrize(
    "layout",
    [Layout(), Layout(dp_shard=2), Layout(tp=2), Layout(dp_replicate=2, tp=2)],
    ids=str,
)
def test_every_recipe_trains_close_to_float32(layout: Layout) -> None:
    recipes = RECIPES if layout.world_size < 4 else ("float8_tensorwise", "mxfp8")
    specs = [make_spec(recipe) for recipe in ("none", *recipes)]
    if layout == Layout(dp_shard=2):
        compiled = {"compile": {"enabled": True, "backend": "aot_eager"}}
        specs.append(make_spec("float8_tensorwise", **compiled))
    (plain, _), *quantized = run_ranks(layout.world_size, _losses, specs, layout)[0]
    assert plain[-1] < plain[0] - 0.5
    for spec, (losses, types) in zip(specs[1:], quantized, strict=True):
        recipe = spec.quantization.recipe
        assert losses == pytest.approx(plain, rel=TOLERANCE), recipe
        assert losses != pytest.approx(plain, rel=1e-6), f"{recipe} computed in float32"
        assert types <= {"Tensor", "Parameter"}, f"{recipe} is saved as {types}"


@pytest.mark.parametrize("recipe", ["float8_rowwise", "mxfp8"])
def test_layers_are_left_out_by_name_and_by_size(recipe: str) -> None:
    spec = make_spec(recipe, quantization={"exclude": ["layers.0", "w2"], "min_dim": 65})
    model = build_model(spec)
    names = [name for name, _ in model.named_parameters()]
    quantize_linear_layers(model, spec, device_type="cpu", shards=None)
    changed = {
        name
        for name, m in model.named_modules()
        if isinstance(m, nn.Linear) and type(m) is not nn.Linear
    }
    # Keys and values are 64 wide.
    assert changed == {
        "layers.1.attention.wq",
        "layers.1.attention.wo",
        "layers.1.feed_forward.w1",
        "layers.1.feed_forward.w3",
    }
    assert [name for name, _ in model.named_parameters()] == names


def test_a_job_moves_between_recipes_and_layouts(tmp_path: Path) -> None:
    def job(folder: str, recipe: str) -> SmallJob:
        return SmallJob(tmp_path / folder).changed(
            tmp_path / folder,
            model={"dropout": 0.0},
            training={"steps": 8},
            quantization={"recipe": recipe},
        )

    two = Layout(dp_shard=2)
    expected = job("whole", "float8_tensorwise").launch(1, two).values("train/loss")
    moved: list[Attempt] = []
    for number, recipe, layout, stop_after in (
        (1, "float8_tensorwise", two, 1),
        (2, "float8_tensorwise", two, 3),
        (3, "none", Layout(), 5),
        (4, "float8_tensorwise", Layout(tp=2), None),
    ):
        own = job("moved", recipe)
        last = own.older(own.committed()[str(moved[-1].outcome.checkpoint_id)]) if moved else None
        moved.append(own.launch(number, layout, Meddling(stop_after=stop_after), resume=last))
    got = {step: v for attempt in moved for step, v in attempt.values("train/loss").items()}
    assert list(got) == list(range(1, 9))
    same = {step: got[step] for step in range(1, 5)}
    assert same == {step: expected[step] for step in same}, "a stop changes no bit"
    assert got == pytest.approx(expected, rel=TOLERANCE)


UNEVEN = [
    *(Layout(dp_shard=ranks) for ranks in (3, 5, 6, 7)),
    Layout(cp=3),
    Layout(dp_replicate=2, dp_shard=3),
    Layout(dp_shard=3, tp=2),
    Layout(dp_replicate=2),
]
"""Layouts that divide the 64 and 192 rows of the layers' weights unevenly, and one shard."""


@pytest.mark.parametrize("layout", UNEVEN, ids=str)
@pytest.mark.parametrize("recipe", RECIPES)
def test_rows_may_divide_unevenly(recipe: str, layout: Layout, tmp_path: Path) -> None:
    job = SmallJob(tmp_path).changed(
        tmp_path,
        model={"dropout": 0.0, "n_kv_heads": 4},
        training={"steps": 3, "seq_len": 96, "global_batch_size": 7, "micro_batch_size": 1},
        lr_schedule={"warmup_steps": 1},
        quantization={"recipe": recipe},
    )
    alone = job.launch(1, Layout()).values("train/loss")
    assert job.launch(2, layout).values("train/loss") == pytest.approx(alone, rel=TOLERANCE)


@pytest.mark.parametrize(
    ("recipe", "dtype", "capability", "message"),
    [
        ("float8_tensorwise", "bfloat16", (8, 0), r"needs compute capability 8.9.*has 8.0.*none$"),
        ("float8_rowwise", "bfloat16", (8, 9), ""),
        ("float8_rowwise", "float32", (9, 0), "give bfloat16 only"),
        ("mxfp8", "bfloat16", (9, 0), "10.0 or higher.*none, or a float8 recipe"),
        ("mxfp8", "bfloat16", (10, 0), ""),
    ],
)
def test_a_gpu_that_cannot_is_refused_at_launch(
    recipe: str, dtype: str, capability: tuple[int, int], message: str
) -> None:
    spec = make_spec(recipe, training={"param_dtype": dtype})
    if not message:
        refuse_unable(spec, "a GPU", capability)
        return
    with pytest.raises(LaunchError, match=message):
        refuse_unable(spec, "a GPU", capability)


@pytest.mark.parametrize(
    ("recipe", "emulated"),
    [
        ("none", False),
        ("float8_tensorwise", False),
        ("float8_rowwise", True),
        ("float8_rowwise_with_gw_hp", True),
    ],
)
def test_compiled_rows_are_scaled_by_what_is_rounded(recipe: str, emulated: bool) -> None:
    config = torch._inductor.config
    with config.patch(emulate_precision_casts=False):
        compile_blocks([], CompileSection(enabled=False), recipe=recipe)
        assert config.emulate_precision_casts is False
        compile_blocks([], CompileSection(enabled=True), recipe=recipe)
        assert config.emulate_precision_casts is emulated
