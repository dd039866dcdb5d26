"""Custom models with a data-dependent forward: the gradient of one rank on every layout."""

from __future__ import annotations

import shutil
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pytest
import torch
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.debug import CommDebugMode

from tests.trainer.models.own import branching
from tests.trainer.ranks import RankError, run_ranks
from tests.trainer.runs import SmallJob
from trainer.data.batches import NO_LABEL, MicroBatch
from trainer.loop.build import assemble
from trainer.loop.step import TrainStep
from trainyard.spec.job import JobSpec, parse_job_spec
from trainyard.spec.layout import Layout

SEQUENCES, LENGTH = 10, 16
KINDS = [kind.__name__ for kind in branching.KINDS]
LAYOUTS = [
    Layout(dp_shard=2),
    Layout(dp_shard=3),
    Layout(dp_replicate=2, dp_shard=2),
    Layout(dp_replicate=2),
]
BLOCKS = {"InBlocks": "Mixture", "Picking": "PickingBlock"}
CHANGES: dict[str, dict[str, Any]] = {
    "plain": {},
    "recomputed": {"activation_checkpoint": {"mode": "full"}},
    "compiled": {"compile": {"enabled": True, "backend": "aot_eager"}},
    "gathered": {"parallelism": {"reshard_after_forward": "never"}},
    "float8": {"quantization": {"recipe": "float8_tensorwise", "exclude": ["head"]}},
    "bfloat16": {
        "parallelism": {"reshard_after_forward": "never"},
        "training": {"param_dtype": "bfloat16"},
    },
}


def spec_of(kind: str, **sections: dict[str, Any]) -> JobSpec:
    training = {"seq_len": LENGTH, "global_batch_size": SEQUENCES, "micro_batch_size": 1}
    return parse_job_spec(
        {
            "model": {
                "factory": "branching:build",
                "code": "data:.",
                "arguments": {"kind": kind},
                "block_classes": [BLOCKS.get(kind, "Block")],
                "vocab_size": 320,
            },
            "optimizer": {"lr": 1e-2},
            "lr_schedule": {"warmup_steps": 0},
            "resources": {"device": "cpu"},
            **{name: section for name, section in sections.items() if name != "training"},
            "training": training | sections.get("training", {}),
        }
    )


def batches(step: int, rank: int, ranks: int) -> list[MicroBatch]:
    """Return a rank's micro-batches of one sequence each; ranks without one have an idle round."""
    tokens = torch.randint(
        0, 256, (SEQUENCES, LENGTH + 1), generator=torch.Generator().manual_seed(step)
    ).numpy()
    rounds = -(-SEQUENCES // ranks)
    found = []
    for number in range(rank, rounds * ranks, ranks):
        counts = number < SEQUENCES
        row = tokens[number : number + 1] if counts else tokens[:1]
        labels = row[:, 1:] if counts else np.full((1, LENGTH), NO_LABEL)
        found.append(
            MicroBatch(
                np.ascontiguousarray(row[:, :-1]),
                np.ascontiguousarray(labels),
                np.array([number]),
                int(counts),
            )
        )
    return found


def whole(tensor: torch.Tensor | None) -> torch.Tensor | None:
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def train(spec: JobSpec, layout: Layout, roots: dict[str, str], steps: int) -> Any:
    """Return the gradients of the first step, and weights, moments and counts after the last."""
    made = assemble(spec, layout, torch.device("cpu"), roots=roots)
    rank = torch.distributed.get_rank()
    gradients = {}
    step_on = TrainStep(made.forward_backward, made.optimizer, spec)
    made.forward_backward(1, batches(1, rank, layout.world_size))
    for name, parameter in made.model.named_parameters():
        gradient = whole(parameter.grad)
        gradients[name] = None if gradient is None else gradient.clone()
    made.optimizer.zero_grad()
    for step in range(1, steps + 1):
        step_on(step, batches(step, rank, layout.world_size))
    states = {}
    for name, parameter in made.model.named_parameters():
        state = made.optimizer.state[parameter]
        moments = [whole(state[key]) for key in ("exp_avg", "exp_avg_sq")]
        states[name] = (whole(parameter.detach()), *moments, state["step"].item())
    return gradients, states


@cache
def trained(kind: str, layout: Layout, change: str = "plain", steps: int = 6) -> Any:
    spec = spec_of(kind, **CHANGES[change])
    with TemporaryDirectory() as folder:
        shutil.copy(branching.__file__, folder)
        return run_ranks(layout.world_size, train, spec, layout, {"data": folder}, steps)[0]


def assert_equal(found: Any, expected: Any, *, within: float = 1e-6) -> None:
    (gradients, states), (of_one, states_of_one) = found, expected
    unused = {name for name, gradient in of_one.items() if gradient is None}
    assert {name for name, gradient in gradients.items() if gradient is None} == unused
    for name in gradients.keys() - unused:
        assert (gradients[name] - of_one[name]).abs().max() <= within * of_one[name].abs().max()
    for name, (*tensors, count) in states.items():
        *wanted, times = states_of_one[name]
        assert count == times, f"{name} is updated in other steps than on one rank"
        for tensor, other in zip(tensors, wanted, strict=True):
            assert torch.allclose(tensor, other, rtol=20 * within, atol=20 * within), name


@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
@pytest.mark.parametrize("kind", KINDS)
def test_the_gradient_is_that_of_one_rank(kind: str, layout: Layout) -> None:
    assert_equal(trained(kind, layout), trained(kind, Layout()))


def used(spec: JobSpec, roots: dict[str, str]) -> list[frozenset[str]]:
    """Return the parameters that each sequence of the first step uses on one rank."""
    made = assemble(spec, Layout(), torch.device("cpu"), roots=roots)
    found = []
    for batch in batches(1, 0, 1):
        made.forward_backward(1, [batch])
        named = made.model.named_parameters()
        found.append(frozenset(name for name, p in named if p.grad is not None))
        made.optimizer.zero_grad()
    return found


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "Thawing"])
def test_the_models_use_other_parameters_for_other_sequences(kind: str, tmp_path: Path) -> None:
    """So the tests above compare different uses."""
    shutil.copy(branching.__file__, tmp_path)
    (found,) = run_ranks(1, used, spec_of(kind), {"data": str(tmp_path)})
    assert len(set(found)) > 1


def test_the_model_that_thaws_does_so_in_the_midst() -> None:
    thawed = trained("Thawing", Layout())[1]["net.blocks.2.up.weight"]
    assert 0 < thawed[-1] < 6


@pytest.mark.parametrize("change", ["recomputed", "compiled", "gathered"])
@pytest.mark.parametrize("kind", KINDS)
def test_it_is_that_of_one_rank_in_other_ways_of_computing(kind: str, change: str) -> None:
    assert_equal(trained(kind, Layout(dp_shard=2), change), trained(kind, Layout()))


@pytest.mark.parametrize("layout", [Layout(dp_shard=2), Layout(dp_shard=3)], ids=str)
@pytest.mark.parametrize("kind", [kind.__name__ for kind in branching.PLAIN])
def test_a_model_without_branches_is_none_that_has_some(kind: str, layout: Layout) -> None:
    assert_equal(trained(kind, layout), trained(kind, Layout()))


@pytest.mark.parametrize("kind", ["Experts", "InBlocks"])
def test_weights_of_branches_are_not_gathered_in_float8(kind: str) -> None:
    found = trained(kind, Layout(dp_shard=2), "float8")
    assert_equal(found, trained(kind, Layout(), "float8"))


@pytest.mark.parametrize("kind", ["Experts", "InBlocks"])
def test_rounds_of_other_parameters_add_up_in_bfloat16(kind: str) -> None:
    found = trained(kind, Layout(dp_shard=2), "bfloat16")
    assert_equal(found, trained(kind, Layout(), "bfloat16"), within=0.02)


def job_of(folder: Path, kind: str) -> SmallJob:
    job = SmallJob(folder)
    shutil.copy(branching.__file__, folder / "data")
    spec = spec_of(kind).model_dump(mode="json", exclude_defaults=True)
    spec["data"] = job.spec["data"]
    spec["training"] |= {"steps": 9}
    spec["checkpoint"] = {"interval_steps": 3}
    return SmallJob(folder, {**spec, "name": "branching"})


@pytest.mark.parametrize("kind", KINDS)
def test_a_job_goes_through_other_numbers_of_ranks(tmp_path: Path, kind: str) -> None:
    whole_job = job_of(tmp_path / "whole", kind).launch(1, Layout())
    job = job_of(tmp_path / "chain", kind)
    resume = None
    for attempt, layout in enumerate([Layout(dp_shard=3), Layout(dp_shard=2), Layout()], start=1):
        run = job.launch(attempt, layout, resume=resume)
        saved = {m.train_state.step: m for m in job.committed().values() if m.attempt == attempt}
        resume = saved[3 * attempt]
        steps = range(3 * attempt - 2, 3 * attempt + 1)
        assert [run.digests[s] for s in steps] == [whole_job.digests[s] for s in steps]
        for step in steps:
            expected = whole_job.values("train/loss")[step]
            assert run.values("train/loss")[step] == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        ("Claims", "an order that varies"),
        ("Drawn", "an order that varies"),
        ("Shuffled", "ranks have built other parameters, or in another order"),
        ("Reordered", "an order that varies: it runs blocks.2 as block 1, where it usually runs"),
        ("Picking", "forward uses parameters that vary: net.blocks.0."),
        ("Freezing", "parameter net.blocks.0.up.weight was built with requires_grad=True"),
        ("Unfrozen", "parameter net.blocks.0.up.weight was built with requires_grad=False"),
        ("UnfrozenAnywhere", "parameter net.blocks.0.up.weight was built with requires_grad=False"),
        ("Misnamed", "data_dependence='in_block' of the module; legal: nowhere, in_blocks"),
    ],
)
def test_what_cannot_be_had_is_refused_by_name(kind: str, words: str) -> None:
    with pytest.raises(RankError, match=words):
        trained(kind, Layout(dp_shard=2))


def test_a_frozen_parameter_that_gets_a_gradient_is_refused_on_one_rank_too() -> None:
    with pytest.raises(RankError, match="was built with requires_grad=False"):
        trained("Unfrozen", Layout())


def count(spec: JobSpec, layout: Layout, roots: dict[str, str]) -> Any:
    made = assemble(spec, layout, torch.device("cpu"), roots=roots)
    step_on = TrainStep(made.forward_backward, made.optimizer, spec)
    rank = torch.distributed.get_rank()
    with CommDebugMode() as communication:
        step_on(1, batches(1, rank, layout.world_size)[:1])
    units = sum(isinstance(module, FSDPModule) for module in made.model.modules())
    counts = communication.get_comm_counts()
    return units, {str(op).rpartition(".")[2]: times for op, times in counts.items()}


def test_a_model_without_branches_has_not_one_collective_more(tmp_path: Path) -> None:
    shutil.copy(branching.__file__, tmp_path)
    roots = {"data": str(tmp_path)}
    (units, found), _ = run_ranks(2, count, spec_of("Plain"), Layout(dp_shard=2), roots)
    assert units == 4, "three blocks and the rest"
    # Blocks are gathered for forward and for backward, the rest once; the norm is one sum.
    assert found == {"_allgather_base_": 2 * 3 + 1, "_reduce_scatter_base_": 4, "allreduce_": 1}
