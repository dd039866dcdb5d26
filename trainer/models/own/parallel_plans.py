"""The parallelism plans of an own model: the splits of its matrices, and its pipeline pieces.

The plans are read from the whole model, before it is cut or sharded, and checked against the spec.
So all ranks raise the same error before any collective.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from fnmatch import fnmatchcase
from typing import Any

from torch import nn
from torch.distributed.tensor.parallel import ParallelStyle

from trainer.errors import LaunchError
from trainyard.spec.job import JobSpec
from trainyard.training.pipeline_stages import module_names

TENSOR, PIPELINE = "tensor_parallel_plan", "pipeline_parallel_plan"


def tensor_plan(net: nn.Module, spec: JobSpec) -> dict[str, ParallelStyle]:
    """Return the style for each module in `tensor_parallel_plan`, with patterns expanded.

    Raises:
        LaunchError: the plan is missing, raises an error, is no dict of styles, names an unknown
            module or, under sequence parallelism, omits a module with parameters.
    """
    axes = spec.parallelism
    options = {
        "tp": axes.tp,
        "sequence_parallel": axes.sequence_parallel,
        "loss_parallel": axes.loss_parallel,
    }
    given = _called(net, TENSOR, plan="tensor", options=options)
    call = _call(net, TENSOR, options)
    if not isinstance(given, dict) or not all(
        isinstance(name, str) and isinstance(style, ParallelStyle) for name, style in given.items()
    ):
        raise LaunchError(f"{call} must return torch's ParallelStyles by name of module")
    names = [name for name, _ in net.named_modules() if name]
    plan: dict[str, ParallelStyle] = {}
    for pattern, style in given.items():
        found = [name for name in names if _matches(name, pattern)]
        if not found:
            raise LaunchError(f"{call} names {pattern!r}, but the model has no such module")
        plan |= dict.fromkeys(found, style)
    left_out = [name for name, _ in net.named_parameters() if name.rpartition(".")[0] not in plan]
    if axes.sequence_parallel and left_out:
        raise LaunchError(
            f"{call} leaves out {_listed(left_out)}: where each rank has a part of the sequence, "
            "gradients of such a parameter must be added up, as those of SequenceParallel are; "
            "legal: a style for its module, or parallelism.sequence_parallel=false"
        )
    return plan


def pieces(net: nn.Module, spec: JobSpec) -> dict[str, tuple[str, ...]]:
    """Return the modules of each piece in `pipeline_parallel_plan`, by the trainer's piece names.

    The first piece is `tok_embeddings`, the middle pieces are `layers.0` and so on, and the last
    piece is `output`; `norm` belongs to the last piece and has no modules.

    Raises:
        LaunchError: the plan is missing, raises an error, or does not match the model.
    """
    given = _called(net, PIPELINE, plan="pipeline", options={})
    call = _call(net, PIPELINE, {})
    if not isinstance(given, list | tuple) or not all(
        isinstance(piece, list | tuple) and all(isinstance(name, str) for name in piece)
        for piece in given
    ):
        raise LaunchError(f"{call} must return a list of pieces, each a list of names of modules")
    layers = spec.architecture.n_layers
    if len(given) != layers + 2:
        raise LaunchError(
            f"{call} returns {len(given)} pieces, but model.n_layers={layers} makes "
            f"{layers + 2}: what comes before the layers, each layer, what comes after them"
        )
    for problem in _misfits(net, [name for piece in given for name in piece]):
        raise LaunchError(f"{call}: {problem}")
    ours = [name for name in module_names(spec.architecture) if name != "norm"]
    return dict(zip(ours, map(tuple, given), strict=True)) | {"norm": ()}


def _called(net: nn.Module, method: str, *, plan: str, options: dict[str, Any]) -> Any:
    """Call a method of the module; return its result.

    Raises:
        LaunchError: the method is missing or raises an error.
    """
    function: Callable[..., Any] | None = getattr(net, method, None)
    if function is None:
        raise LaunchError(
            f"model.plans has {plan!r}, but {type(net).__name__} of the own model has no method "
            f"{method}; legal: a model that has one, or plans without {plan!r}"
        )
    try:
        return function(**options)
    except LaunchError:  # a hub model's, which names its field
        raise
    except Exception as error:  # user code may raise anything
        call = _call(net, method, options)
        raise LaunchError(f"{call} failed: {type(error).__name__}: {error}") from error


def _misfits(net: nn.Module, names: list[str]) -> Iterator[str]:
    """Yield the problems of a list of modules that must hold each parameter exactly once."""
    there = {name for name, _ in net.named_modules(remove_duplicate=False) if name}
    if unknown := [name for name in names if name not in there]:
        yield f"the model has no {_listed(unknown)}"
    for index, name in enumerate(names):
        if inside := [
            n for i, n in enumerate(names) if i != index and f"{n}.".startswith(f"{name}.")
        ]:
            yield f"{_listed(inside)} is named twice, by itself or within {name}"
    holders: dict[int, str] = {}
    for name, parameter in net.named_parameters(remove_duplicate=False):
        holder = next((other for other in names if name.startswith(f"{other}.")), None)
        if holder is None:
            yield f"no piece has the module of {name}: each parameter needs a stage that holds it"
            return
        if holders.setdefault(id(parameter), holder) != holder:
            yield (
                f"{holders[id(parameter)]} and {holder} share the weight {name}, "
                "which one stage must hold; legal: weights of their own, or parallelism.pp=1"
            )


def _matches(name: str, pattern: str) -> bool:
    parts, wanted = name.split("."), pattern.split(".")
    return len(parts) == len(wanted) and all(map(fnmatchcase, parts, wanted))


def _call(net: nn.Module, method: str, options: dict[str, Any]) -> str:
    given = ", ".join(f"{name}={value!r}" for name, value in options.items())
    return f"own model: {type(net).__name__}.{method}({given})"


def _listed(names: list[str]) -> str:
    return ", ".join(names[:4]) + (", ..." if len(names) > 4 else "")
