"""Tied own models: one weight under several names is one weight on every layout."""

from __future__ import annotations

import textwrap
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.trainer.ranks import RankError
from tests.trainer.runs import Attempt, SmallJob
from tests.trainer.stored import stored_tensors
from trainer.check import check_run
from trainer.checkpoint.chunks.divided_tensor import TensorKind
from trainer.checkpoint.reader.metadata import without_aliases
from trainer.errors import LaunchError
from trainer.loop.build import allocate
from trainer.models.families import build_model
from trainer.run import open_run
from trainyard.spec.layout import Layout

CODE = """
    import torch
    import torch.nn.functional as F
    from torch import nn
    from torch.distributed.tensor import Replicate, Shard
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel


    class Block(nn.Module):
        def __init__(self, width, kernel):
            super().__init__()
            self.norm = nn.LayerNorm(width)
            self.conv = nn.Conv1d(width, width, 3)
            self.up = nn.Linear(width, 2 * width)
            self.down = nn.Linear(2 * width, width)
            self.register_buffer("kernel", kernel)  # one tensor for all blocks
            self.register_buffer("scale", torch.linspace(0.5, 1.5, width))

        def forward(self, x):
            seen = F.pad(self.norm(x).transpose(1, 2), (2, 0))  # causal
            x = x + self.conv(seen * self.kernel[0]).transpose(1, 2) * self.scale
            return x + self.down(F.gelu(self.up(x)))


    class Tied(nn.Module):
        def __init__(self, vocab_size, width, depth, alike):
            super().__init__()
            self.alike = alike
            self.tokens = nn.Embedding(vocab_size, width)
            kernel = torch.full((1,), 1.5)
            self.blocks = nn.ModuleList(Block(width, kernel) for _ in range(depth))
            for block in self.blocks[1:]:
                block.up.weight = self.blocks[0].up.weight
            self.head = nn.Linear(width, vocab_size, bias=False)
            self.head.weight = self.tokens.weight

        def forward(self, tokens):
            x = self.tokens(tokens)
            for block in self.blocks:
                x = block(x)
            return self.head(x)

        def tensor_parallel_plan(self, *, tp, sequence_parallel, loss_parallel):
            whole = Replicate()
            columns = ColwiseParallel(
                input_layouts=whole,
                output_layouts=Shard(-1) if loss_parallel else whole,
                use_local_output=not loss_parallel,
            )
            rows = RowwiseParallel(input_layouts=whole, output_layouts=whole)
            return {
                "tokens": rows if self.alike else ColwiseParallel(output_layouts=whole),
                "blocks.*.up": ColwiseParallel(input_layouts=whole),
                "blocks.*.down": RowwiseParallel(output_layouts=whole),
                "head": columns,
            }

        def pipeline_parallel_plan(self):
            blocks = [[f"blocks.{i}"] for i in range(len(self.blocks))]
            return [["tokens"], *blocks, ["head"]]


    def build(vocab_size, seq_len, width=32, depth=2, alike=True):
        return Tied(vocab_size, width, depth, alike)
"""
MODEL: dict[str, Any] = {
    "factory": "tied:build",
    "code": "data:.",
    "block_classes": ["Block"],
    "plans": ["tensor", "pipeline"],
    "dim": 32,
    "n_layers": 2,
}


def tied_job(folder: Path, *, steps: int = 4, **sections: Any) -> SmallJob:
    made = SmallJob(folder)
    (folder / "data" / "tied.py").write_text(textwrap.dedent(CODE))
    return SmallJob(folder, {**made.spec, "model": MODEL}).changed(
        folder,
        training={"steps": steps},
        lr_schedule={"warmup_steps": 1},
        checkpoint={"interval_steps": 2, "preflight": False},
        parallelism={"sequence_parallel": False},
        **sections,
    )


def curves(attempt: Attempt) -> list[dict[int, float]]:
    return [attempt.values(name) for name in ("train/loss", "train/grad_norm")]


def test_it_is_the_same_model_on_every_layout_and_goes_from_each_to_each(tmp_path: Path) -> None:
    job = tied_job(tmp_path / "job")
    layouts = [Layout(), Layout(dp_shard=2), Layout(tp=2)]
    whole = [job.launch(number, layout) for number, layout in enumerate(layouts, start=1)]
    loss, norm = curves(whole[0])
    for attempt in whole[1:]:
        assert curves(attempt)[0] == pytest.approx(loss, rel=1e-6)
        assert curves(attempt)[1] == pytest.approx(norm, rel=1e-5)

    saved = {m.attempt: m for m in job.committed().values() if m.train_state.step == 2}
    stored = {number: stored_tensors(job, manifest) for number, manifest in saved.items()}
    assert stored[1].keys() == stored[2].keys() == stored[3].keys()
    assert "model.net.tokens.weight" in stored[1]
    assert "model.net.head.weight" not in stored[1], "one name, the first"
    assert "model.net.blocks.1.up.weight" not in stored[1]
    for name, tensor in stored[1].items():
        for other in (2, 3):
            torch.testing.assert_close(stored[other][name], tensor, rtol=1e-4, atol=1e-5)

    for number, (came_from, layout) in enumerate(
        ((1, layouts[1]), (2, layouts[2]), (3, layouts[0]), (2, layouts[0])), start=4
    ):
        went_on = job.launch(number, layout, resume=saved[came_from])
        assert curves(went_on)[0][4] == pytest.approx(loss[4], rel=1e-6)
        assert curves(went_on)[1][4] == pytest.approx(norm[4], rel=1e-5)


def test_a_tied_head_in_float8_is_the_same_under_fsdp(tmp_path: Path) -> None:
    recipe = {"recipe": "float8_tensorwise", "exclude": []}
    job = tied_job(tmp_path / "job", steps=2, quantization=recipe)
    alone, sharded = job.launch(1, Layout()), job.launch(2, Layout(dp_shard=2))
    assert curves(sharded)[0] == pytest.approx(curves(alone)[0], rel=1e-4)


def _with_arguments(folder: Path, **arguments: Any) -> SmallJob:
    return tied_job(folder).changed(folder, model={"arguments": arguments})


def test_a_tie_that_the_tensor_plan_splits_in_two_ways_is_refused(tmp_path: Path) -> None:
    job = _with_arguments(tmp_path / "job", alike=False)
    message = (
        r"tokens\.weight and head\.weight are one weight, but .*Shard\(dim=1\).*Shard\(dim=0\)"
    )
    with pytest.raises(RankError, match=message):
        job.launch(1, Layout(tp=2))


def test_a_tie_between_stages_is_refused_by_name(tmp_path: Path) -> None:
    run = tied_job(tmp_path / "job").prepare(1, Layout(pp=2))
    with pytest.raises(
        LaunchError, match=r"blocks\.0 and blocks\.1 share the weight blocks\.1\.up"
    ):
        check_run(run, roots={})


def test_tied_buffers_stay_one_where_they_are_moved(tmp_path: Path) -> None:
    job = tied_job(tmp_path / "job")
    run = open_run(job.prepare(1, Layout()), world_size=1, roots={})
    model: Any = build_model(run.spec, run.attempt.roots)
    allocate(model, weights="cpu", buffers="meta")  # `meta` stands for the GPU
    first, second = model.net.blocks
    assert first.kernel is second.kernel
    assert first.scale is not second.scale
    assert first.up.weight is second.up.weight
    assert model.net.head.weight is model.net.tokens.weight
    allocate(model, weights="cpu", buffers="cpu")
    model.reset_buffers()
    assert second.kernel.tolist() == [1.5]


def _stored(*names: str) -> dict[str, TensorKind | None]:
    return dict.fromkeys(names, TensorKind("float32", (1,)))


def test_an_older_checkpoint_that_holds_a_tied_weight_twice_still_loads() -> None:
    tied = {"model.head": "model.tokens"}
    older = _stored("model.head", "model.tokens", "optimizer.tokens.exp_avg")
    found = without_aliases(older, tied)
    assert found.keys() == {"model.tokens", "optimizer.tokens.exp_avg"}

    moments = ("optimizer.head.exp_avg", "optimizer.tokens.exp_avg")
    untied = _stored("model.head", "model.tokens", *moments)
    assert "model.head" in without_aliases(untied, tied), "it was another weight: it does not fit"
