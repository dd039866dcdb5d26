"""Pipeline stages, and the modules in each stage."""

from __future__ import annotations

import heapq
from collections import Counter
from dataclasses import dataclass
from functools import lru_cache

from trainyard.base.problems import SpecError, named, nearest, refusal
from trainyard.training.architectures import Architecture
from trainyard.training.flops import attention_flops_per_token, matmul_parameters_of_a_block
from trainyard.training.pipeline_schedule import (
    PipelineSchedule,
    default_stages_per_rank,
    legal_stages,
    rank_of_stage,
    takes_stages,
)

EMBEDDING_COST = 0.1
"""Cost of the embedding, relative to a block. A look-up has no FLOPs, but takes time and memory."""

Modules = tuple[tuple[str, ...], ...]
"""Names of the modules in each stage."""


@dataclass(frozen=True)
class Stage:
    """One stage of the pipeline."""

    index: int
    """Position of the stage in the model, from 0."""
    rank: int
    """Pipeline rank that runs the stage."""
    modules: tuple[str, ...]
    """Names of the modules in model order: `tok_embeddings`, `layers.0`, ..., `norm`, `output`."""

    @property
    def layers(self) -> int:
        """Number of transformer blocks in the stage."""
        return sum(name.startswith("layers.") for name in self.modules)


def cut_into_stages(
    architecture: Architecture,
    *,
    pp: int,
    seq_len: int,
    schedule: PipelineSchedule,
    modules: Modules = (),
    layers_per_stage: int | None = None,
) -> tuple[Stage, ...]:
    """Return the stages of a model in model order; one stage without pipeline parallelism.

    Args:
        architecture: shape of the model.
        pp: number of ranks in a pipeline.
        seq_len: number of tokens in a sequence.
        schedule: schedule that runs the stages.
        modules: names of the modules in each stage.
        layers_per_stage: number of layers per stage. If both this and `modules` are absent, the
            longest stage is made as short as possible, by FLOPs.

    Raises:
        SpecError: the model cannot be divided like this; the error gives the nearest legal values.
    """
    names = module_names(architecture)
    if pp == 1:
        if modules:
            raise _stages_refused(
                modules, "pp=1 has no pipeline; legal: no stages, or pp from 2 on"
            )
        return (Stage(0, 0, names),)
    if modules:
        if layers_per_stage is not None:
            raise _stages_refused(
                modules,
                f"pp_layers_per_stage={layers_per_stage} gives stages too; legal: one of them",
            )
        _check_modules(modules, names)
        _check_count(schedule, modules, pp)
    else:
        layers = (
            _balanced_layers(architecture, schedule, pp=pp, seq_len=seq_len)
            if layers_per_stage is None
            else _equal_layers(architecture.n_layers, schedule, pp=pp, per_stage=layers_per_stage)
        )
        modules = _modules(layers, names)
    return tuple(
        Stage(index, rank_of_stage(schedule, index, pp=pp), stage)
        for index, stage in enumerate(modules)
    )


def module_names(architecture: Architecture) -> tuple[str, ...]:
    """Return the names of the modules that make up stages, in the order of the forward pass."""
    layers = (f"layers.{index}" for index in range(architecture.n_layers))
    head = () if architecture.tied_embeddings else ("output",)
    return ("tok_embeddings", *layers, "norm", *head)


def _balanced_layers(
    shape: Architecture, schedule: PipelineSchedule, *, pp: int, seq_len: int
) -> tuple[int, ...]:
    per_rank = default_stages_per_rank(schedule)
    if per_rank * pp > shape.n_layers:
        raise refusal(
            "/parallelism/pp",
            f"pp={pp} with {schedule} makes {per_rank * pp} stages, but the model has "
            f"{shape.n_layers} layers; legal: pp up to {shape.n_layers // per_rank}",
        )
    return _balanced(shape.n_layers, per_rank * pp, head_cost(shape, seq_len=seq_len))


def head_cost(architecture: Architecture, *, seq_len: int) -> float:
    """Return the cost of the head relative to a block, by forward FLOPs for one token."""
    a = architecture
    attention = attention_flops_per_token(a, seq_len) / (2 * a.n_layers)
    return a.vocab_size * a.dim / (matmul_parameters_of_a_block(a) + attention)


@lru_cache(maxsize=1024)
def _balanced(n_layers: int, stages: int, head: float) -> tuple[int, ...]:
    """Return the number of layers per stage such that the longest stage is as short as possible.

    Each stage starts with one layer. Each further layer goes to the stage that is shortest so
    far; among equal stages to the last, because the first stages hold more micro-batches.
    """
    layers = [1] * stages
    costs = [1.0] * stages
    costs[0] += EMBEDDING_COST
    costs[-1] += head
    # A heap by cost; the negative index sorts the last of several equal stages first.
    shortest = [(cost, -index) for index, cost in enumerate(costs)]
    heapq.heapify(shortest)
    for _ in range(n_layers - stages):
        cost, place = shortest[0]
        layers[-place] += 1
        heapq.heapreplace(shortest, (cost + 1, place))
    return tuple(layers)


def _modules(layers: tuple[int, ...], names: tuple[str, ...]) -> Modules:
    """Return each stage's modules; the first stage has the embedding, the last has norm and
    head."""
    cut, start = [], 0
    for index, count in enumerate(layers):
        end = start + count + (1 if index == 0 else 0)
        end = len(names) if index == len(layers) - 1 else end
        cut.append(names[start:end])
        start = end
    return tuple(cut)


def _check_modules(stages: Modules, names: tuple[str, ...]) -> None:
    given = [name for stage in stages for name in stage]
    times, known = Counter(given), set(names)
    wrong = {
        "unknown": [name for name in times if name not in known],
        "given twice": [name for name in times if times[name] > 1],
        "missing": [name for name in names if name not in times],
        "out of order": [name for name, other in zip(given, names, strict=False) if name != other],
    }
    legal = f"tok_embeddings, layers.0 to {', '.join(names[names.index('norm') - 1 :])}"
    for what, modules in wrong.items():
        if modules:
            listed = ", ".join(modules[:3]) + (", ..." if len(modules) > 3 else "")
            raise _stages_refused(
                stages, f"{what}: {listed}; legal: {legal}, each once and in this order"
            )
    if not all(stages):
        raise _stages_refused(
            stages, f"stage {stages.index(())} has no module; legal: one or more in each"
        )


def _check_count(schedule: PipelineSchedule, stages: Modules, pp: int) -> None:
    if not takes_stages(schedule, len(stages), pp=pp):
        raise _stages_refused(
            stages,
            f"{len(stages)} stages, but {schedule} on pp={pp} needs other numbers; "
            f"legal: {legal_stages(schedule, pp=pp)}",
        )


def _equal_layers(
    n_layers: int, schedule: PipelineSchedule, *, pp: int, per_stage: int
) -> tuple[int, ...]:
    stages = -(-n_layers // per_stage)
    if not takes_stages(schedule, stages, pp=pp):
        counts = range(1, n_layers + 1)
        legal = [k for k in counts if takes_stages(schedule, -(-n_layers // k), pp=pp)]
        raise refusal(
            "/parallelism/pp_layers_per_stage",
            f"pp_layers_per_stage={per_stage} cuts {n_layers} layers into {stages} stages, but "
            f"{schedule} on pp={pp} needs {legal_stages(schedule, pp=pp)}; "
            f"{nearest(per_stage, legal)}",
        )
    return (*[per_stage] * (stages - 1), n_layers - per_stage * (stages - 1))


def _stages_refused(stages: Modules, detail: str) -> SpecError:
    given = named("pp_stage_modules", stages)
    return refusal("/parallelism/pp_stage_modules", f"{given}: {detail}")
