"""Styles of torch and pieces of a pipeline, from the plans that `transformers` publishes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from fnmatch import fnmatchcase
from typing import Any

from torch.distributed.tensor import Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    ParallelStyle,
    RowwiseParallel,
    SequenceParallel,
)

from trainer.errors import LaunchError

STYLES: dict[str, Callable[[], ParallelStyle]] = {
    "colwise": ColwiseParallel,
    "rowwise": RowwiseParallel,
    "colwise_gather_output": lambda: ColwiseParallel(output_layouts=Replicate()),
    "colwise_rep": lambda: ColwiseParallel(output_layouts=Replicate()),
    "rowwise_split_input": lambda: RowwiseParallel(input_layouts=Replicate()),
    "rowwise_rep": lambda: RowwiseParallel(input_layouts=Replicate()),
    "embedding_rowwise": lambda: RowwiseParallel(input_layouts=Replicate()),
    # A norm of single heads: each rank has its own heads in place of tokens, and gradients of the
    # weight are summed over ranks.
    "replicated_with_grad_allreduce": lambda: SequenceParallel(use_local_output=True),
}
"""Style of torch for each published style that a job may use."""
STAGED = frozenset(
    {"deepseek_v3", "gemma3_text", "gpt_oss", "mistral", "mixtral", "olmo2", "phi", "qwen3"}
)
"""Architectures whose stages a test compares with the whole model, by `model_type`."""


def tensor_styles(causal: Any, *, field: str, loss_parallel: bool) -> dict[str, ParallelStyle]:
    """Return the style for each pattern of names in the plan of a model.

    Args:
        causal: model of transformers.
        field: field and value in the spec, for messages.
        loss_parallel: whether the head leaves its logits split along the vocabulary.

    Raises:
        LaunchError: the architecture publishes no plan, or a style is unknown.
    """
    kind = causal.config.model_type
    names = {name for name, _ in causal.named_modules()}
    names |= {name for name, _ in causal.named_parameters()}
    plan = {
        pattern: style
        for pattern, style in (causal._tp_plan or {}).items()
        if any(fnmatchcase(name, pattern) for name in names)
    }
    head = _name_of(causal, causal.get_output_embeddings())
    if not plan.keys() - {head}:
        raise LaunchError(
            f"{field}: transformers publishes no plan for {kind}; legal: parallelism.tp=1"
        )
    for pattern, style in plan.items():
        if style not in STYLES:
            raise LaunchError(
                f"{field}: the plan of {kind} has style {style!r} for {pattern}, which no job "
                "supports; legal: parallelism.tp=1"
            )
    if (name := _unstyled(causal, plan)) is not None:
        raise LaunchError(
            f"{field}: the plan of {kind} has no style for {name}, whose gradient may differ on "
            "ranks that share a matrix; legal: parallelism.tp=1"
        )
    styles = {pattern: STYLES[style]() for pattern, style in plan.items()}
    if loss_parallel:
        styles[head] = ColwiseParallel(output_layouts=Shard(-1), use_local_output=False)
    return styles


def _unstyled(causal: Any, plan: Mapping[str, str]) -> str | None:
    """Return a parameter without a style that may see a rank's part of the features, if any.

    These are parameters next to a column-wise matrix, or inside of such a neighbour: norms of
    heads, and learned activations. A norm of the stream stands next to the attention instead.
    """
    split = [pattern for pattern, style in plan.items() if style == "colwise"]
    names = (name for name, _ in causal.named_modules())
    parents = {n.rpartition(".")[0] for n in names if any(fnmatchcase(n, each) for each in split)}
    for name, _ in causal.named_parameters():
        module = name.rpartition(".")[0]
        styled = any(fnmatchcase(module, pattern) for pattern in plan)
        if not styled and any(module.startswith(f"{parent}.") for parent in parents if parent):
            return name
    return None


def pipeline_pieces(causal: Any, *, field: str) -> list[list[str]]:
    """Return the modules of each piece of a model: before the blocks, each block, after them.

    Raises:
        LaunchError: the architecture is not in `STAGED`.
    """
    kind = causal.config.model_type
    if kind not in STAGED:
        raise LaunchError(
            f"{field}: stages of {kind} were never compared with the whole model; legal: "
            f"parallelism.pp=1, or one of {', '.join(sorted(STAGED))}"
        )
    order = [name for name in causal.config.base_model_pp_plan if _has_weights(causal, name)]
    place = order.index("layers")
    prefix = causal.base_model_prefix
    first = [f"{prefix}.{name}" for name in order[:place]]
    last = [f"{prefix}.{name}" for name in order[place + 1 :]]
    blocks = [[f"{prefix}.layers.{index}"] for index in range(len(causal.base_model.layers))]
    return [first, *blocks, [*last, _name_of(causal, causal.get_output_embeddings())]]


def _has_weights(causal: Any, name: str) -> bool:
    module = causal.base_model.get_submodule(name)
    return any(True for _ in module.parameters())


def _name_of(causal: Any, wanted: Any) -> str:
    return next(name for name, module in causal.named_modules() if module is wanted)
