"""What tensor, context and pipeline parallelism demand of a model, its sequences and its batch."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from trainyard.base.problems import Problem, SpecError, nearest
from trainyard.spec.job import JobSpec
from trainyard.spec.layout import Layout
from trainyard.spec.pipeline import microbatches_of, stages_of

WIDEST = 256
"""Axis sizes up to here are tried when nearest legal ones are named."""
SPLIT_BACKWARD = ("InterleavedZeroBubble", "ZBVZeroBubble")
"""Schedules that compute the gradients of inputs and of weights at different times."""


def own_model(spec: JobSpec, layout: Layout) -> Iterator[Problem]:
    """An own model is cut as it says itself, and what it says is known from `model.plans`."""
    if spec.model.factory is None:
        return
    for axis, plan, what in (("tp", "tensor", "matrices"), ("pp", "pipeline", "the layers")):
        size = getattr(layout, axis)
        if size > 1 and plan not in spec.model.plans:
            given = f"[{', '.join(map(repr, spec.model.plans))}]"
            yield _problem(
                axis,
                f"{axis}={size} shares out {what} of a model of model.factory, but model.plans="
                f"{given} has no {plan!r}; legal: {axis}=1, or a model that gives this plan",
            )
    if layout.cp > 1:
        yield _problem(
            "cp",
            f"cp={layout.cp} shares out a sequence, whose tokens a model of model.factory attends "
            "to in a way of its own; legal: cp=1",
        )


def tensor_parallel(spec: JobSpec, layout: Layout) -> Iterator[Problem]:
    """Each rank has as many heads, feed-forward columns, vocabulary rows and tokens."""
    tp = layout.tp
    if tp == 1:
        return
    a = spec.architecture
    sizes = {name: getattr(a, name) for name in ("n_heads", "n_kv_heads", "ffn_dim", "vocab_size")}
    uneven = [f"{name}={size}" for name, size in sizes.items() if size % tp]
    if uneven:
        legal = _sizes(lambda n: not any(size % n for size in sizes.values()))
        yield _problem("tp", f"tp={tp} does not divide {', '.join(uneven)}; {nearest(tp, legal)}")
    parts, tokens = layout.cp * tp, spec.training.seq_len
    if spec.parallelism.sequence_parallel and tokens % parts:
        legal = _sizes(lambda n: tokens % (layout.cp * n) == 0)
        yield _problem(
            "tp",
            f"tp={tp} with sequence_parallel cuts a sequence into cp x tp = {parts} parts, but "
            f"seq_len={tokens}; {nearest(tp, legal)}, or sequence_parallel=false",
        )


def asynchronous(spec: JobSpec, layout: Layout) -> Iterator[Problem]:
    """torch.compile fuses the communication of sequence parallelism with products, on CUDA only."""
    if not spec.parallelism.async_tp:
        return
    needed = {
        f"ranks that share a matrix, but tp={layout.tp}; legal: false, or tp from 2 on": (
            layout.tp > 1
        ),
        "what sequence_parallel=false leaves out; legal: false, or sequence_parallel=true": (
            spec.parallelism.sequence_parallel
        ),
        "the compiler, but compile.enabled=false; legal: false, or compile.enabled=true": (
            spec.compile.enabled is True
        ),
        "CUDA with symmetric memory, but device='cpu'; legal: false, or device='cuda'": (
            spec.resources.device != "cpu"
        ),
    }
    for what, given in needed.items():
        if not given:
            yield _problem("async_tp", f"async_tp=true needs {what}")


def context_parallel(spec: JobSpec, layout: Layout) -> Iterator[Problem]:
    """Each rank has as many tokens; with `ulysses` each attends with as many heads."""
    cp, tokens = layout.cp, spec.training.seq_len
    if cp == 1:
        return
    method = spec.parallelism.cp_method
    # Head-tail balancing gives a rank one part from the front and one from the back.
    parts = 2 if method == "allgather_kv" else 1
    if tokens % (parts * cp):
        legal = _sizes(lambda n: n == 1 or tokens % (parts * n) == 0)
        yield _problem(
            "cp",
            f"cp={cp} with {method} cuts a sequence into {parts * cp} parts, but "
            f"seq_len={tokens}; {nearest(cp, legal)}",
        )
    if method != "ulysses":
        return
    a = spec.architecture
    heads = {"n_heads": a.n_heads, "n_kv_heads": a.n_kv_heads}
    uneven = [f"{name}={number}" for name, number in heads.items() if number % (cp * layout.tp)]
    if uneven:
        legal = _sizes(
            lambda n: n == 1 or not any(number % (n * layout.tp) for number in heads.values())
        )
        yield _problem(
            "cp",
            f"cp={cp} with ulysses gives cp x tp = {cp * layout.tp} ranks heads of their own, but "
            f"{', '.join(uneven)}; {nearest(cp, legal)}, or cp_method='allgather_kv'",
        )


def pipeline_parallel(spec: JobSpec, layout: Layout) -> Iterator[Problem]:
    """The model can be cut into the schedule's stages, and a step into its micro-batches."""
    if layout.pp > 1 and spec.architecture.tied_embeddings:
        yield _problem(
            "pp",
            f"pp={layout.pp}, but embedding and head of model.size={spec.model.size!r} are one "
            "weight, which one stage must hold; legal: pp=1",
        )
        return
    if layout.pp > 1 and spec.parallelism.pp_schedule in SPLIT_BACKWARD:
        yield from _split_backward(spec)
    try:
        stages_of(spec, layout)
    except SpecError as error:
        yield from error.problems
        return
    if layout.pp > 1:
        try:
            microbatches_of(spec, layout)
        except SpecError as error:
            yield from error.problems


def _split_backward(spec: JobSpec) -> Iterator[Problem]:
    """Blocks can be gone backward through twice, as the schedule does."""
    unable = {
        "compile.enabled=false": ("compiled blocks", spec.compile.enabled is True),
        "activation_checkpoint.mode='full' or 'none'": (
            "selective activation checkpointing",
            spec.activation_checkpoint.mode == "selective",
        ),
    }
    for legal, (what, asked_for) in unable.items():
        if asked_for:
            yield _problem(
                "pp_schedule",
                f"pp_schedule={spec.parallelism.pp_schedule!r} computes gradients of inputs and "
                f"of weights apart, which {what} cannot; "
                f"legal: GPipe, 1F1B, Interleaved1F1B, or {legal}",
            )


AXES: tuple[Callable[[JobSpec, Layout], Iterator[Problem]], ...] = (
    own_model,
    tensor_parallel,
    asynchronous,
    context_parallel,
    pipeline_parallel,
)


def _sizes(is_legal: Callable[[int], bool]) -> list[int]:
    return [size for size in range(1, WIDEST + 1) if is_legal(size)]


def _problem(field: str, detail: str) -> Problem:
    return Problem(pointer=f"/parallelism/{field}", detail=detail)
