"""Rules across the fields of a job spec."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Iterator

from trainyard.axes import AXES
from trainyard.axes.base import Axis, LayoutFacts, problem
from trainyard.base.problems import Problem, SpecError, around, divisors, multiples, named, nearest
from trainyard.spec.auto import expected_device, resolved
from trainyard.spec.checkpoint_rules import CHECKPOINT_RULES, accelerator
from trainyard.spec.environment import environment_problems
from trainyard.spec.ignored_fields import NEW_JOB_RULES
from trainyard.spec.job import JobSpec
from trainyard.spec.layout import Layout, data_parallel_layouts
from trainyard.spec.optimizer_rules import LEARNING
from trainyard.spec.precision import PRECISION, hardware
from trainyard.spec.program_rules import PROGRAM, given_sections
from trainyard.spec.sections.model import ModelSection
from trainyard.training.architectures import ARCHITECTURES, Architecture
from trainyard.training.known_devices import Slot

Rule = Callable[[JobSpec], Iterator[Problem]]

BYTE_VOCABULARY = 259
"""Number of tokens of the byte tokenizer: 256 bytes, start of text, end of text, and padding."""
FIXED_BY_FOLDER = (
    *("family", "size", "factory", "code", "arguments", "block_classes", "plans"),
    *("rope_theta", "rope_factor", "norm_eps", "dropout"),
)
"""Fields of the section `model` that the folder of a hub model replaces."""
SIZES_NAMED = 64
"""Maximum number of world sizes to try in the search for legal sizes near an illegal size."""


def check_job_spec(spec: JobSpec, *, slots: Collection[Slot] = ()) -> None:
    """Reject a job that cannot run, because of an unknown model, or inconsistent shapes or axes.

    Args:
        spec: the job's spec, with or without the overrides of an attempt (`Overrides.apply`). Each
            `auto` is checked with its value on the expected device, although the actual device may
            differ.
        slots: slots of the nodes; if empty, the hardware is not checked.

    Raises:
        SpecError: naming all problems.
    """
    _check(spec, (*RULES, _axes, _ends_of_range), slots)


def check_new_job(spec: JobSpec, *, slots: Collection[Slot] = ()) -> None:
    """Reject a job that cannot run, or a field that has no effect.

    A stored job with a field without effect continues; only a new job is rejected.

    Raises:
        SpecError: naming all problems.
    """
    _check(spec, (*RULES, _axes, _ends_of_range, *NEW_JOB_RULES), slots, given_sections)


def fields_with_code(spec: JobSpec) -> tuple[str, ...]:
    """Return the fields of a spec that run code of the job, or could run it.

    A job with such fields is untrusted: on a node it shares neither caches nor measurements with
    other jobs.
    """
    variables = (p.pointer[1:].replace("/", ".") for p in environment_problems(spec.env))
    return (*variables, *own_code(spec).values())


def own_code(spec: JobSpec) -> dict[str, str]:
    """Return the fields with which a job brings its own code: their texts, by JSON pointer."""
    fields = {}
    if spec.model.factory is not None:
        fields["/model/factory"] = f"model.factory={spec.model.factory!r}"
    if spec.model.remote_code:
        fields["/model/remote_code"] = "model.remote_code=true"
    if spec.program is not None:
        fields["/program"] = "program"
    return fields


def check_without_layout(spec: JobSpec, *, slots: Collection[Slot] = ()) -> None:
    """Reject a job that cannot run on any layout; `layout_problems` has the rules of layouts.

    Raises:
        SpecError: naming all problems.
    """
    _check(spec, RULES, slots)


def _check(
    spec: JobSpec, rules: Iterable[Rule], slots: Collection[Slot], *of_programs: Rule
) -> None:
    """Apply `rules` to a job of the trainer, or `PROGRAM` and `of_programs` to a job with a
    program."""
    if spec.program is not None:
        found = [problem for rule in (*PROGRAM, *of_programs, _resources) for problem in rule(spec)]
        if found:
            raise SpecError(found)
        return
    spec = resolved(spec, expected_device(spec, slots))
    problems = [problem for rule in rules for problem in rule(spec)]
    problems += [*hardware(spec, slots), *accelerator(spec, slots)]
    if problems:
        raise SpecError(problems)


def _model(spec: JobSpec) -> Iterator[Problem]:
    sizes = ARCHITECTURES[spec.model.family]
    if spec.model.size not in sizes:
        legal = ", ".join(sizes)
        yield Problem(
            pointer="/model/size", detail=f"size={spec.model.size!r} is unknown; legal: {legal}"
        )
        return
    shape = spec.architecture
    if not spec.model.is_own:  # an own model defines its own heads
        yield from _heads(shape)
    if spec.data.tokenizer == "byte" and shape.vocab_size < BYTE_VOCABULARY:
        yield Problem(
            pointer="/model/vocab_size",
            detail=f"vocab_size={shape.vocab_size} is below the byte tokenizer's "
            f"{BYTE_VOCABULARY}; legal: {BYTE_VOCABULARY} or more",
        )


def _heads(shape: Architecture) -> Iterator[Problem]:
    if shape.own_head_dim is None and shape.dim % (2 * shape.n_heads):
        heads = () if shape.dim % 2 else divisors(shape.dim // 2)
        dims = multiples(2 * shape.n_heads, shape.dim)
        yield Problem(
            pointer="/model/n_heads",
            detail=f"n_heads={shape.n_heads} must divide dim={shape.dim} into even head widths; "
            f"{nearest(shape.n_heads, heads)}, or as dim: {around(shape.dim, dims)}",
        )
    elif shape.head_dim % 2:
        yield Problem(
            pointer="/model/head_dim",
            detail=f"head_dim={shape.head_dim} is odd, but features turn in pairs; "
            f"nearest legal: {shape.head_dim - 1}, {shape.head_dim + 1}",
        )
    if shape.n_heads % shape.n_kv_heads:
        yield Problem(
            pointer="/model/n_kv_heads",
            detail=f"n_kv_heads={shape.n_kv_heads} does not divide n_heads={shape.n_heads}; "
            f"{nearest(shape.n_kv_heads, divisors(shape.n_heads))}",
        )


def _own_model(spec: JobSpec) -> Iterator[Problem]:
    """Reject fields that need a user's own model, and fields that such a model does not support."""
    model = spec.model
    if model.hugging_face is not None:
        return
    if model.factory is None:
        for name in ("code", "arguments", "block_classes", "plans"):
            value = getattr(model, name)
            if value:
                detail = f"{named(name, value)} needs model.factory; legal: no {name}"
                yield Problem(pointer=f"/model/{name}", detail=detail)
        return
    unknown = {
        "/model/initial_weights": (model.initial_weights, "has no published names; legal: none"),
        "/model/dropout": (
            model.dropout,
            "has its own; legal: 0, with the model's own options in model.arguments",
        ),
        "/data/document_masks": (spec.data.document_masks, "is given tokens only; legal: false"),
    }
    for pointer, (value, why) in unknown.items():
        if value:
            given = named(pointer.rpartition("/")[2], value)
            detail = f"{given}, but a model of model.factory {why}"
            yield Problem(pointer=pointer, detail=detail)


def _hub_model(spec: JobSpec) -> Iterator[Problem]:
    """Reject fields that a hub model's folder defines, and fields that hub models do not
    support."""
    model, default = spec.model, ModelSection()
    if model.hugging_face is None:
        if model.remote_code:
            detail = "remote_code=true needs model.hugging_face; legal: false"
            yield Problem(pointer="/model/remote_code", detail=detail)
        if model.counted is not None:
            detail = "counted needs model.hugging_face; legal: no counted"
            yield Problem(pointer="/model/counted", detail=detail)
        return
    for name in FIXED_BY_FOLDER:
        if (value := getattr(model, name)) != getattr(default, name):
            detail = f"{named(name, value)}, but the folder of model.hugging_face defines the model"
            yield Problem(pointer=f"/model/{name}", detail=f"{detail}; legal: no {name}")
    axes = spec.parallelism
    if axes.tp > 1 and axes.sequence_parallel:
        yield Problem(
            pointer="/parallelism/sequence_parallel",
            detail=f"tp={axes.tp} with sequence_parallel=true, but plans of transformers keep "
            "whole sequences between matrices; legal: sequence_parallel=false",
        )


def _data(spec: JobSpec) -> Iterator[Problem]:
    """Reject a job that lacks a data field that its input needs, or has one that its input
    ignores."""
    data = spec.data
    corpus, bytes_only = data.source == "corpus", data.tokenizer == "byte"
    source = f"source={data.source!r}"
    broken = (
        (
            "path",
            corpus and data.path is not None,
            "but a built-in corpus has none; "
            "legal: no path, or source text, jsonl, parquet, huggingface",
        ),
        (
            "path",
            not corpus and data.path is None,
            f"but {source} reads one; legal: a place, such as data:text",
        ),
        (
            "text_field",
            data.source in {"corpus", "text"} and data.text_field != "text",
            f"but {source} has no fields; "
            "legal: no text_field, or source jsonl, parquet, huggingface",
        ),
        (
            "split",
            data.source != "huggingface" and data.split != "train",
            f"but {source} has none; legal: no split, or source huggingface",
        ),
        (
            "tokenizer_path",
            bytes_only and data.tokenizer_path is not None,
            "but the byte tokenizer has no file; "
            "legal: no tokenizer_path, or tokenizer='huggingface'",
        ),
        (
            "tokenizer_path",
            not bytes_only and data.tokenizer_path is None,
            "but tokenizer='huggingface' reads one; "
            "legal: the place of a tokenizer.json, such as data:tokenizer.json",
        ),
    )
    for field, applies, why in broken:
        if applies:
            value = getattr(data, field)
            given = f"{field} is absent" if value is None else named(field, value)
            yield Problem(pointer=f"/data/{field}", detail=f"{given}, {why}")


def _axes(spec: JobSpec) -> Iterator[Problem]:
    try:
        layout = spec.layout()
    except SpecError as error:
        yield from error.problems
        return
    yield from layout_problems(spec, layout)


def layout_problems(spec: JobSpec, layout: Layout) -> Iterator[Problem]:
    """Yield a problem for each quantity that the axes do not divide: batch, heads, tokens etc."""
    try:
        spec.batch_partition(layout)
    except ValueError as error:
        yield Problem(pointer="/training/micro_batch_size", detail=str(error))
        return
    if spec.model.size not in ARCHITECTURES[spec.model.family]:
        return
    facts = spec.facts(layout)
    for axis in AXES:
        yield from _borrowed(axis, facts)
        for rule in axis.rules:
            yield from rule(facts)
    for precision in PRECISION:
        yield from precision(spec, layout)


def _borrowed(axis: Axis, facts: LayoutFacts) -> Iterator[Problem]:
    """Reject an axis that regroups ranks of other axes, unless its size divides the number of
    ranks."""
    size = facts.size(axis.name)
    if axis.multiplies_world or size == 1:
        return
    room = math.prod(facts.size(name) for name in axis.borrows_from)
    if room % size:
        words = " x ".join(axis.borrows_from)
        yield problem(
            axis.name,
            f"{axis.name}={size} does not divide {words} = {room}, whose ranks it regroups; "
            f"{nearest(size, divisors(room))}",
        )


def _resources(spec: JobSpec) -> Iterator[Problem]:
    nodes, slots = spec.resources.nodes, spec.resources.world_size
    if nodes is not None and slots % nodes:
        yield Problem(
            pointer="/resources/nodes",
            detail=f"nodes={nodes} does not divide world_size={slots}; "
            f"{nearest(nodes, divisors(slots))}",
        )
    if nodes is None and spec.resources.spare_nodes:
        yield Problem(
            pointer="/resources/spare_nodes",
            detail=f"spare_nodes={spec.resources.spare_nodes} needs nodes: a spare node has the "
            "slots of one node of equal shares",
        )
    if spec.resources.size_range is None:
        return
    low, high = spec.resources.size_range
    if low > slots:
        yield Problem(
            pointer="/resources/min_world_size",
            detail=f"min_world_size={low} is more than world_size={slots}; legal: 1 to {slots}",
        )
    if high < slots:
        yield Problem(
            pointer="/resources/max_world_size",
            detail=f"max_world_size={high} is less than world_size={slots}; legal: {slots} or more",
        )


def _ends_of_range(spec: JobSpec) -> Iterator[Problem]:
    """Reject an elastic job without a legal layout for its minimum or maximum number of slots.

    Skip a job that cannot run even on `world_size` slots, because its other problems come first.
    """
    if spec.resources.size_range is None or _breaks_a_rule(spec):
        return
    low, high = spec.resources.size_range
    for field, size, inner in (
        ("min_world_size", low, range(low + 1, min(low + SIZES_NAMED, high + 1))),
        ("max_world_size", high, range(max(high - SIZES_NAMED, low), high)),
    ):
        if not _has_layout(spec, size):
            legal = [each for each in inner if _has_layout(spec, each)]
            yield Problem(
                pointer=f"/resources/{field}",
                detail=f"{field}={size} has no legal layout that changes only dp_replicate and "
                f"dp_shard; {nearest(size, legal)}",
            )


def _has_layout(spec: JobSpec, world_size: int) -> bool:
    """Return whether any layout of this world size is legal with micro-batches of one sequence.

    The layouts differ from the job's own layout only in the `dp` axes.
    """
    training = spec.training.model_copy(update={"micro_batch_size": 1})
    smallest = spec.model_copy(update={"training": training})
    layouts = data_parallel_layouts(spec.parallelism.sizes, world_size)
    return any(not _breaks_a_rule(smallest.on_layout(each)) for each in layouts)


def _breaks_a_rule(spec: JobSpec) -> bool:
    return any(True for rule in (*RULES, _axes) for _ in rule(spec))


RULES: tuple[Rule, ...] = (
    _model,
    _own_model,
    _hub_model,
    _data,
    _resources,
    *LEARNING,
    *CHECKPOINT_RULES,
)
