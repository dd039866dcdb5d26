"""Pipeline stages: which modules each has, which rank runs it, and in how many micro-batches.

The rule is the same for the planner, which says what it costs, and the trainer, which follows it.
p ranks share one pipeline; each runs v stages and, in one run of the schedule, m micro-batches.
"""

from __future__ import annotations

import heapq
import itertools
import math
from collections import Counter
from dataclasses import dataclass
from functools import lru_cache

from trainyard.base.problems import Problem, SpecError, named, nearest
from trainyard.spec.flops import matmul_parameters_of_a_block
from trainyard.spec.job import JobSpec
from trainyard.spec.layout import Layout
from trainyard.spec.sections.parallelism import PipelineSchedule
from trainyard.training.architectures import Architecture
from trainyard.training.batch_partition import BatchDeal

EMBEDDING_COST = 0.1
"""Blocks that the embedding counts for: a look-up has no FLOPs, but takes some time and memory."""


@dataclass(frozen=True)
class Stage:
    """One stage of the pipeline."""

    index: int
    """Place in the model, from 0."""
    rank: int
    """Pipeline rank that runs it."""
    modules: tuple[str, ...]
    """Names in model order: `tok_embeddings`, `layers.0`, ..., `norm`, `output`."""

    @property
    def layers(self) -> int:
        """Transformer blocks in it."""
        return sum(name.startswith("layers.") for name in self.modules)


def stages_of(spec: JobSpec, layout: Layout) -> tuple[Stage, ...]:
    """Return the stages of a job in model order; a single one without pipeline parallelism.

    Which modules a stage has is said by `pp_stage_modules`, or by `pp_layers_per_stage` (the last
    stage may have fewer), or else follows from FLOPs: no stage is longer than it must be.

    Raises:
        SpecError: the model cannot be cut so; field, value and nearest legal values are named.
    """
    names = module_names(spec.architecture)
    if layout.pp == 1:
        if spec.parallelism.pp_stage_modules:
            raise _stages_refused(
                spec.parallelism.pp_stage_modules,
                "pp=1 has no pipeline; legal: no stages, or pp from 2 on",
            )
        return (Stage(0, 0, names),)
    schedule = spec.parallelism.pp_schedule
    cut = _cut(spec, layout.pp, names)
    return tuple(
        Stage(index, rank_of_stage(schedule, index, pp=layout.pp), modules)
        for index, modules in enumerate(cut)
    )


def module_names(architecture: Architecture) -> tuple[str, ...]:
    """Return the modules of which stages are made, in the order in which a token meets them."""
    layers = (f"layers.{index}" for index in range(architecture.n_layers))
    head = () if architecture.tied_embeddings else ("output",)
    return ("tok_embeddings", *layers, "norm", *head)


def rank_of_stage(schedule: PipelineSchedule, index: int, *, pp: int) -> int:
    """Return the pipeline rank of a stage: in turn, or there and back for `ZBVZeroBubble`.

    There and back, rank 0 has the first and the last stage, and every rank two.
    """
    if schedule == "ZBVZeroBubble":
        return min(index, 2 * pp - 1 - index)
    return index % pp


def microbatches_of(spec: JobSpec, layout: Layout) -> int:
    """Return m, the micro-batches of one run of the schedule.

    A step takes as many runs as hold all that a rank has to run; the last one is filled up with
    micro-batches without a sequence. When `pp_microbatches` is absent, m is that of the shortest
    step, what is computed of empty ones counted. It follows from spec and layout alone, so it is
    the same on every device.

    Raises:
        SpecError: the schedule cannot run so many; field, value and nearest legal values are named.
        ValueError: the batch cannot be dealt (`BatchDeal`).
    """
    deal = spec.deal(layout)
    schedule, given = spec.parallelism.pp_schedule, spec.parallelism.pp_microbatches
    if deal.rounds < least_microbatches(schedule, pp=layout.pp):
        raise _too_few(spec, layout, deal)
    if given is None:
        per_rank = len(stages_of(spec, layout)) // layout.pp
        return _quickest(schedule, deal.rounds, pp=layout.pp, stages_per_rank=per_rank)
    most = _next_runnable(schedule, deal.rounds, pp=layout.pp)
    if given > most or not can_run(schedule, given, pp=layout.pp):
        legal = [m for m in range(1, most + 1) if can_run(schedule, m, pp=layout.pp)]
        raise _refusal(
            "pp_microbatches",
            f"{schedule} on pp={layout.pp} cannot run pp_microbatches={given} at once, where a "
            f"rank has {deal.rounds} micro-batches in a step; {nearest(given, legal)}",
        )
    return given


def runs_of(deal: BatchDeal, microbatches: int) -> int:
    """Return the runs of the schedule in one step, of so many micro-batches each."""
    return -(-deal.rounds // microbatches)


def _quickest(schedule: PipelineSchedule, rounds: int, *, pp: int, stages_per_rank: int) -> int:
    """Return the m with which a step of so many micro-batches is over first.

    Of equals it is the one with the fewest runs, each of which reduces gradients anew. The least m
    that so many runs need is the best for them: one more never shortens a run.
    """
    best, shortest = rounds, math.inf
    for runs in range(1, rounds + 1):
        if 3 * stages_per_rank * rounds + runs * (pp - 1) >= shortest:
            break  # no run waits less than p - 1
        m = _next_runnable(schedule, -(-rounds // runs), pp=pp)
        wait = waiting(schedule, pp=pp, stages_per_rank=stages_per_rank, microbatches=m)
        time = runs * (3 * stages_per_rank * m + wait)
        if time < shortest:
            best, shortest = m, time
    return best


def _next_runnable(schedule: PipelineSchedule, microbatches: int, *, pp: int) -> int:
    """Return the fewest that the schedule can run, and not fewer than those; at most p - 1 more."""
    return next(m for m in itertools.count(microbatches) if can_run(schedule, m, pp=pp))


def can_run(schedule: PipelineSchedule, microbatches: int, *, pp: int) -> bool:
    """Return whether a schedule takes so many micro-batches in one run.

    1F1B needs one for each stage. The interleaved ones run them in max(1, m // p) equal groups.
    The others take any number (torch.distributed.pipelining.schedules, 2.13).
    """
    if schedule in {"Interleaved1F1B", "InterleavedZeroBubble"}:
        return microbatches % max(1, microbatches // pp) == 0
    return microbatches >= least_microbatches(schedule, pp=pp)


def least_microbatches(schedule: PipelineSchedule, *, pp: int) -> int:
    """Return the fewest micro-batches with which a schedule runs."""
    return pp if schedule == "1F1B" else 1


def bubble_share(
    schedule: PipelineSchedule, *, pp: int, stages_per_rank: int, microbatches: int
) -> float:
    """Return the share of a run's time in which a rank waits, were all stages equally long."""
    wait = waiting(schedule, pp=pp, stages_per_rank=stages_per_rank, microbatches=microbatches)
    return wait / (3 * stages_per_rank * microbatches + wait)


def waiting(schedule: PipelineSchedule, *, pp: int, stages_per_rank: int, microbatches: int) -> int:
    """Return how long each rank waits in a run, in forward passes of a stage.

    Backward takes two of them, or one for each half; a rank works for 3 v m. GPipe, 1F1B and
    interleaved ones with p micro-batches or more: Narayanan et al. 2021, section 2.2. ZB-H1 with v
    stages: Qi et al. 2023, table 2. ZB-V has no bubble there because its iterations overlap, as
    they cannot where all ranks wait for the norm of the gradient. With fewer micro-batches a rank
    waits for the first one to come round; those terms were found by playing the schedules out, and
    a test does so.
    """
    few = max(0, pp - microbatches)
    match schedule:
        case "GPipe" | "1F1B":
            return 3 * (pp - 1)
        case "Interleaved1F1B":
            return 3 * (pp - 1) + 3 * (stages_per_rank - 1) * few
        case "InterleavedZeroBubble":
            very_few = max(0, pp - 2 * microbatches)
            return pp - 1 + stages_per_rank * few + (stages_per_rank - 1) * very_few
        case "ZBVZeroBubble":
            return max(pp - 1, 4 * (pp - 1) - 2 * (microbatches - 1))


def in_flight(
    schedule: PipelineSchedule, *, pp: int, stages_per_rank: int, microbatches: int, rank: int
) -> int:
    """Return how many forward passes of stages a rank holds at most, their backward to come.

    GPipe holds all of them; 1F1B as many as there are stages from this one on. The interleaved
    ones run (v - 1) g + k (p - 1 - rank) ahead, for groups of g micro-batches and k = 2, or 1 with
    a zero bubble, where the weights' half of `rank` backward passes waits too. ZB-V holds 2 p, or
    somewhat less where there are fewer than 2 p - 1 micro-batches.
    """
    most = stages_per_rank * microbatches
    group = microbatches // max(1, microbatches // pp)
    ahead = (stages_per_rank - 1) * group
    match schedule:
        case "GPipe":
            return most
        case "1F1B":
            return min(most, pp - rank)
        case "Interleaved1F1B":
            return min(most, ahead + 2 * (pp - 1 - rank) + 1)
        case "InterleavedZeroBubble":
            return min(most, ahead + pp)
        case "ZBVZeroBubble":
            return min(most, 2 * pp)


def default_stages_per_rank(schedule: PipelineSchedule) -> int:
    """Return v where the spec gives no stages."""
    return 1 if schedule in {"GPipe", "1F1B"} else 2


def _cut(spec: JobSpec, pp: int, names: tuple[str, ...]) -> tuple[tuple[str, ...], ...]:
    axes, shape = spec.parallelism, spec.architecture
    if axes.pp_stage_modules and axes.pp_layers_per_stage is not None:
        raise _stages_refused(
            axes.pp_stage_modules,
            f"pp_layers_per_stage={axes.pp_layers_per_stage} gives stages too; legal: one of them",
        )
    if axes.pp_stage_modules:
        _check_modules(axes.pp_stage_modules, names)
        _check_count(axes.pp_schedule, axes.pp_stage_modules, pp)
        return axes.pp_stage_modules
    if axes.pp_layers_per_stage is not None:
        _check_layers_per_stage(axes.pp_schedule, axes.pp_layers_per_stage, shape.n_layers, pp)
        full, rest = divmod(shape.n_layers, axes.pp_layers_per_stage)
        layers: tuple[int, ...] = (axes.pp_layers_per_stage,) * full + ((rest,) if rest else ())
    else:
        per_rank = default_stages_per_rank(axes.pp_schedule)
        if per_rank * pp > shape.n_layers:
            raise _refusal(
                "pp",
                f"pp={pp} with {axes.pp_schedule} makes {per_rank * pp} stages, but the model has "
                f"{shape.n_layers} layers; legal: pp up to {shape.n_layers // per_rank}",
            )
        layers = _balanced(shape.n_layers, per_rank * pp, head_cost(spec))
    return _modules(layers, names)


def head_cost(spec: JobSpec) -> float:
    """Return the blocks that the head counts for, by FLOPs for one token.

    A block multiplies a token with its matrices and, on average, with half of the keys and values
    of a sequence: 2 x seq_len x (heads x head width) / 2.
    """
    a = spec.architecture
    block = matmul_parameters_of_a_block(a) + a.attention_dim * spec.training.seq_len
    return a.vocab_size * a.dim / block


@lru_cache(maxsize=1024)
def _balanced(n_layers: int, stages: int, head: float) -> tuple[int, ...]:
    """Return the layers of each stage such that the longest stage is as short as can be.

    Each has one; every other goes to the stage that is shortest so far, the last of equals, since
    the first ones hold more micro-batches.
    """
    layers = [1] * stages
    costs = [1.0] * stages
    costs[0] += EMBEDDING_COST
    costs[-1] += head
    shortest = [(cost, -index) for index, cost in enumerate(costs)]
    heapq.heapify(shortest)
    for _ in range(n_layers - stages):
        cost, place = shortest[0]
        layers[-place] += 1
        heapq.heapreplace(shortest, (cost + 1, place))
    return tuple(layers)


def _modules(layers: tuple[int, ...], names: tuple[str, ...]) -> tuple[tuple[str, ...], ...]:
    """Return the names of each stage; the first takes the embedding, the last norm and head."""
    cut, start = [], 0
    for index, count in enumerate(layers):
        end = start + count + (1 if index == 0 else 0)
        end = len(names) if index == len(layers) - 1 else end
        cut.append(names[start:end])
        start = end
    return tuple(cut)


def _check_modules(stages: tuple[tuple[str, ...], ...], names: tuple[str, ...]) -> None:
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


def _check_count(schedule: PipelineSchedule, stages: tuple[tuple[str, ...], ...], pp: int) -> None:
    if not _is_count(schedule, len(stages), pp):
        raise _stages_refused(
            stages,
            f"{len(stages)} stages, but {schedule} on pp={pp} needs other numbers; "
            f"legal: {_counts(schedule, pp)}",
        )


def _check_layers_per_stage(
    schedule: PipelineSchedule, per_stage: int, n_layers: int, pp: int
) -> None:
    stages = -(-n_layers // per_stage)
    if _is_count(schedule, stages, pp):
        return
    legal = [k for k in range(1, n_layers + 1) if _is_count(schedule, -(-n_layers // k), pp)]
    raise _refusal(
        "pp_layers_per_stage",
        f"pp_layers_per_stage={per_stage} cuts {n_layers} layers into {stages} stages, but "
        f"{schedule} on pp={pp} needs {_counts(schedule, pp)}; {nearest(per_stage, legal)}",
    )


def _is_count(schedule: PipelineSchedule, stages: int, pp: int) -> bool:
    match schedule:
        case "GPipe" | "1F1B":
            return stages == pp
        case "ZBVZeroBubble":
            return stages == 2 * pp
        case "Interleaved1F1B" | "InterleavedZeroBubble":
            return stages % pp == 0 and stages >= 2 * pp


def _counts(schedule: PipelineSchedule, pp: int) -> str:
    match schedule:
        case "GPipe" | "1F1B":
            return str(pp)
        case "ZBVZeroBubble":
            return str(2 * pp)
        case "Interleaved1F1B" | "InterleavedZeroBubble":
            return f"a multiple of {pp} from {2 * pp} on"


def _too_few(spec: JobSpec, layout: Layout, deal: BatchDeal) -> SpecError:
    least = least_microbatches(spec.parallelism.pp_schedule, pp=layout.pp)
    smaller = (deal.global_batch_size - 1) // (layout.dp * (least - 1))
    or_smaller = f", micro_batch_size up to {smaller}" if smaller else ""
    return _refusal(
        "pp",
        f"{spec.parallelism.pp_schedule} on pp={layout.pp} needs at least {least} micro-batches on "
        f"each rank, but dp={layout.dp} leaves {deal.rounds} of global_batch_size="
        f"{deal.global_batch_size} with micro_batch_size={deal.micro_batch_size}; "
        f"legal: pp up to {deal.rounds}{or_smaller}, or another pp_schedule",
    )


def _stages_refused(stages: tuple[tuple[str, ...], ...], detail: str) -> SpecError:
    return _refusal("pp_stage_modules", f"{named('pp_stage_modules', stages)}: {detail}")


def _refusal(field: str, detail: str) -> SpecError:
    return SpecError([Problem(pointer=f"/parallelism/{field}", detail=detail)])
