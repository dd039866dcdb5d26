"""Checkpoints load on other world sizes and layouts, bit for bit, and saving changes nothing."""

import random
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.optim import AdamW

from tests.trainer.checkpoint.toy import (
    JOB,
    Toy,
    build,
    full_tensors,
    load,
    manager,
    resume_point,
    save_trained,
    state_at,
    train,
)
from tests.trainer.ranks import run_ranks
from trainer.checkpoint.manifest import committed_manifests, read_manifest
from trainyard.protocol.attempt import ResumePoint
from trainyard.protocol.manifest import Manifest
from trainyard.run.checkpoints.checkpoint_names import COMMITTED
from trainyard.spec.layout import Layout

FSDP2 = Layout(dp_shard=2)
HSDP = Layout(dp_replicate=2, dp_shard=2)


def _load(root: Path, layout: Layout, resume: ResumePoint) -> tuple[Manifest, dict[str, Tensor]]:
    model, optimizer = build(layout, seed=2)
    manager(root, layout, attempt=2, resume=resume).raise_fence()
    manifest = load(root, layout, model=model, optimizer=optimizer, resume=resume).manifest
    return manifest, full_tensors(model, optimizer)


@pytest.mark.parametrize(
    ("saved_on", "loaded_on"),
    [
        (FSDP2, [Layout(dp_shard=1), Layout(dp_shard=3), HSDP]),
        (HSDP, [Layout(dp_shard=3), Layout(dp_replicate=2)]),
    ],
    ids=str,
)
def test_a_checkpoint_loads_bit_equal_on_other_layouts(
    tmp_path: Path, saved_on: Layout, loaded_on: list[Layout]
) -> None:
    saved = run_ranks(saved_on.world_size, save_trained, tmp_path, saved_on, 3)
    manifest, expected = saved[0]
    assert manifest.layout == saved_on
    assert manifest.param_dtype == "float32"
    assert {name.partition(".")[0] for name in expected} == {"model", "optimizer"}
    assert [float(t) for name, t in expected.items() if name.endswith(".step")] == [3.0] * 6
    for layout in loaded_on:
        loaded = run_ranks(layout.world_size, _load, tmp_path, layout, resume_point(manifest))
        for read, tensors in loaded:
            assert read == manifest
            assert tensors.keys() == expected.keys()
            for name, tensor in tensors.items():
                assert torch.equal(tensor, expected[name]), (str(layout), name)


def test_replicas_write_each_byte_once(tmp_path: Path) -> None:
    fsdp, _ = run_ranks(2, save_trained, tmp_path / "fsdp", FSDP2, 1)[0]
    hsdp, _ = run_ranks(4, save_trained, tmp_path / "hsdp", HSDP, 1)[0]
    assert hsdp.size < fsdp.size * 1.1
    assert all(file.size for file in hsdp.files)


def _train_with_saves(root: Path | None) -> tuple[dict[str, Tensor], list[object]]:
    model, optimizer = build(FSDP2, seed=1)
    random.seed(1)
    np.random.seed(1)
    for step in range(1, 5):
        if root is not None:
            saver = manager(root, FSDP2)
            saver.save(model, optimizer, state_at(step), kind="interval")
        train(model, optimizer, steps=1)
    drawn: list[object] = [torch.rand(1).item(), random.random(), np.random.rand()]
    return full_tensors(model, optimizer), drawn


def test_training_with_saves_is_bit_equal_to_training_without(tmp_path: Path) -> None:
    with_saves = run_ranks(2, _train_with_saves, tmp_path)
    without = run_ranks(2, _train_with_saves, None)
    assert len(committed_manifests(tmp_path, JOB)) == 4
    for (tensors, drawn), (expected, expected_drawn) in zip(with_saves, without, strict=True):
        assert drawn == expected_drawn
        assert all(torch.equal(tensors[name], expected[name]) for name in expected)


def _save_before_the_first_step(root: Path) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    model, optimizer = build(FSDP2, seed=1)
    before = full_tensors(model, optimizer)
    manager(root, FSDP2).save(model, optimizer, state_at(0), kind="preflight")
    return before, full_tensors(model, optimizer)


def test_a_save_before_the_first_step_takes_no_hidden_step(tmp_path: Path) -> None:
    before, after = run_ranks(2, _save_before_the_first_step, tmp_path)[0]
    assert all(torch.equal(before[name], after[name]) for name in before)
    steps = [float(tensor) for name, tensor in after.items() if name.endswith(".step")]
    assert steps == [0.0] * 6
    manifest = read_manifest(tmp_path / JOB / "a1" / "step-0")
    _, loaded = run_ranks(1, _load, tmp_path, Layout(), resume_point(manifest))[0]
    assert all(torch.equal(before[name], loaded[name]) for name in before)


def _save_without_state(root: Path) -> int:
    model = Toy()
    optimizer = AdamW(model.parameters())
    with pytest.raises(AssertionError, match="materialize"):
        manager(root, Layout()).save(model, optimizer, state_at(0), kind="preflight")
    return len(optimizer.state)


def test_an_optimizer_without_state_is_refused_untouched(tmp_path: Path) -> None:
    assert run_ranks(1, _save_without_state, tmp_path) == [0]
    assert not list(tmp_path.rglob(COMMITTED))
