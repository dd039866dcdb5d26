"""torchtitan's legal layouts of a recipe for a number of ranks; needs neither ranks nor a GPU."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Iterator
from typing import Any

from torchtitan.models.common.attention import FlexAttention
from torchtitan.models.common.moe import MoE

from trainyard.adapters.torchtitan.exact_steps import has_router, split_of
from trainyard.adapters.torchtitan.program_layouts import AXES, MODEL_AXES, Degrees


def legal_layouts(config: Any, world_size: int) -> dict[str, Any]:
    """Return the legal layouts of a recipe as values of JSON.

    Args:
        config: a config of torchtitan's trainer, exact or not.
        world_size: number of ranks.

    Returns:
        `layouts` has one entry per legal layout: a degree per axis, `micro_batch_size`,
        `accumulation_steps` and `padded_rows`. `reasons` has the reasons against the other
        layouts, each once. `world_size` and `global_batch_size` are also included.
    """
    checked: dict[tuple[int, ...], str | None] = {}
    layouts: list[dict[str, int]] = []
    reasons: dict[str, None] = {}
    for layout in _layouts(world_size, has_router(config)):
        candidate = _arranged(config, layout)
        try:
            split = split_of(candidate, world_size)
        except ValueError as error:
            reasons[str(error)] = None
            continue
        key = tuple(layout[axis] for axis in MODEL_AXES)
        if key not in checked:
            checked[key] = _problem(candidate)
        if (problem := checked[key]) is not None:
            reasons[problem] = None
            continue
        layouts.append(
            {
                **layout,
                "micro_batch_size": split.local_batch_size,
                "accumulation_steps": split.accumulation_steps,
                "padded_rows": split.padded_rows,
            }
        )
    return {
        "world_size": world_size,
        "global_batch_size": config.training.global_batch_size,
        "layouts": layouts,
        "reasons": list(reasons),
    }


def _layouts(world_size: int, has_experts: bool) -> Iterator[dict[str, int]]:
    """Yield each division of the ranks over the axes, without pipeline stages."""
    for tp in _divisors(world_size):
        for cp in _divisors(world_size // tp):
            dp = world_size // (tp * cp)
            for shard in _divisors(dp):
                for ep in _divisors(shard * cp * tp) if has_experts else [1]:
                    yield {
                        "dp_replicate": dp // shard,
                        "dp_shard": shard,
                        "cp": cp,
                        "tp": tp,
                        "pp": 1,
                        "ep": ep,
                    }


def _divisors(number: int) -> list[int]:
    return [each for each in range(1, number + 1) if number % each == 0]


def _arranged(config: Any, layout: Degrees) -> Any:
    """Return a shallow copy of a recipe with another layout; torchtitan's checks do not run."""
    degrees = {AXES[axis]: degree for axis, degree in layout.items()}
    candidate = copy.copy(config)
    candidate.parallelism = dataclasses.replace(config.parallelism, **degrees)
    return candidate


def _problem(config: Any) -> str | None:
    """Return why torchtitan would refuse the model on these axes; None if the layout is legal.

    torchtitan makes most of these checks only when the trainer is created on all ranks.
    """
    try:
        dataclasses.replace(config)  # the checks of the config itself
        model = copy.deepcopy(config.model_spec.model)
        model.update_from_config(config=config)
        _check_sequence(config)
        _check_experts(config)
        _check_context(config)
    except (ValueError, NotImplementedError) as error:
        return str(error)
    return None


def _check_sequence(config: Any) -> None:
    parallelism = config.parallelism
    tp, cp = parallelism.tensor_parallel_degree, parallelism.context_parallel_degree
    divisor = tp if parallelism.enable_sequence_parallel else 1
    divisor *= 2 * cp if cp > 1 else 1
    if config.training.seq_len % divisor:
        raise ValueError(
            f"training.seq_len={config.training.seq_len} is no multiple of {divisor}, which "
            f"tp={tp} and cp={cp} need"
        )


def _check_experts(config: Any) -> None:
    ep = config.parallelism.expert_parallel_degree
    for _, moe, *_ in config.model_spec.traverse(MoE.Config):
        if moe.num_experts % ep:
            raise ValueError(f"ep={ep} does not divide the {moe.num_experts} experts")


def _check_context(config: Any) -> None:
    cp = config.parallelism.context_parallel_degree
    attention = getattr(config.model_spec.model, "first_attention", None)
    inner = getattr(attention, "inner_attention", None)
    if cp > 1 and not isinstance(inner, FlexAttention.Config):
        raise ValueError(f"cp={cp} needs FlexAttention, not {type(inner).__qualname__}")
