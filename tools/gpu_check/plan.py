"""Every check by stage, with its time limit; the most valuable stages come first."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

STAGE_SECONDS = 480.0
"""Time limit of a stage on a GPU, in seconds; shared machines often end a command after 600 s."""
CPU_FACTOR = 3.0
"""Factor of all time limits on a CPU, because other work may share its cores."""


@dataclass(frozen=True)
class Check:
    """A check, which writes one line of the result."""

    name: str
    function: str
    """`module:function`; the function takes `Here` and the arguments, and returns figures."""
    arguments: dict[str, Any] = field(default_factory=dict)
    """Keyword arguments of the function, as JSON values."""
    seconds: float = 120.0
    """Time limit in seconds; a check that takes longer fails."""
    needs_cuda: str = ""
    """Reason why the check is skipped on a CPU; empty if the check runs there."""


def _check(
    name: str, function: str, seconds: float = 120.0, /, *, needs_cuda: str = "", **arguments: Any
) -> Check:
    return Check(name, f"tools.gpu_check.stages.{function}", arguments, seconds, needs_cuda)


def _execution() -> tuple[Check, ...]:
    function = "execution:runs_as_the_reference"
    modes = ("none", "selective", "full")
    eager = (_check(f"eager_{mode}", function, 200, compiled=False, mode=mode) for mode in modes)
    # The budget is a setting of the compiler.
    budget = (*modes, "memory_budget")
    compiled = (
        _check(f"compile_{mode}", function, 200, compiled=True, mode=mode) for mode in budget
    )
    return (*eager, *compiled)


def _speed(size: str) -> tuple[Check, ...]:
    ways = ("eager", "compiled", "float8")
    steps = (_check(f"{size}_{way}", "speed:step", 300, size=size, way=way) for way in ways)
    reason = "at debug sizes on a CPU neither compilation nor float8 gains anything"
    return (*steps, _check(f"{size}_gains", "speed:gains", 30, needs_cuda=reason, size=size))


RECIPES = ("float8_tensorwise", "float8_rowwise", "float8_rowwise_with_gw_hp", "mxfp8")
LAYOUTS = (
    "fsdp_2",
    "fsdp_4",
    "hsdp_2x2",
    "fsdp_2_tp_2",
    "fsdp_2_cp_2_allgather_kv",
    "fsdp_2_cp_2_ulysses",
    "fsdp_2_pp_2",
)
SAVED = "saves:killed_and_resumed_on_a_cpu"
PINNED = "async_with_pinned_mem"
UNWATCHED = "curves:nothing_waits_between_logged_steps"
STAGES: dict[str, tuple[Check, ...]] = {
    "start": (
        _check("imports", "start:imports"),
        _check(
            "nccl",
            "start:nccl_collectives",
            needs_cuda="NCCL needs CUDA; all other checks use gloo on a CPU",
        ),
        _check("torchrun", "start:one_rank_under_torchrun"),
        _check(
            "cuda_tests",
            "start:tests_that_need_cuda",
            300,
            needs_cuda="these tests are the ones that need a GPU",
        ),
    ),
    "curves": (
        _check("float32", "curves:as_on_a_cpu", dtype="float32"),
        _check("bfloat16", "curves:as_on_a_cpu", dtype="bfloat16"),
        _check("one_seed_twice", "curves:one_seed_twice"),
        _check("deterministic", "curves:deterministic_twice"),
        _check("no_sync_eager", UNWATCHED, compiled=False),
        _check("no_sync_compiled", UNWATCHED, compiled=True),
    ),
    "execution": _execution(),
    "saves": (
        _check("disabled", SAVED, 150, mode="disabled"),
        _check("async", SAVED, 150, mode="async"),
        _check(
            PINNED,
            SAVED,
            150,
            needs_cuda="pinned memory serves copies from a GPU; the trainer refuses it on a CPU",
            mode=PINNED,
        ),
    ),
    "float8": tuple(
        _check(recipe, "float8:learns_as_float32", 200, recipe=recipe) for recipe in RECIPES
    ),
    "reports": (
        _check("out_of_memory", "reports:out_of_memory_is_explained"),
        _check(
            "memory_snapshot",
            "reports:memory_snapshot_on_request",
            needs_cuda="a snapshot shows the allocator of CUDA; the trainer refuses it on a CPU",
        ),
        _check("profile", "reports:profile_on_request"),
    ),
    "speed": (*_speed("1B"), *_speed("3B")),
    "speed_8b": _speed("8B"),
    "fake_ranks": tuple(
        _check(str(ranks), "fake_ranks:one_of_many", 200, ranks=ranks) for ranks in (8, 64, 512)
    ),
    "layouts": tuple(_check(name, "layouts:trains_as_one_rank", name=name) for name in LAYOUTS),
}


TIMED = frozenset({"speed", "speed_8b", "fake_ranks"})
"""Stages that measure time. Their checks run one at a time."""


def named_stages(text: str) -> list[str]:
    """Return the names of stages in a comma-separated text.

    Raises:
        ValueError: a stage is unknown.
    """
    names = [name.strip() for name in text.split(",") if name.strip()]
    unknown = [name for name in names if name not in STAGES]
    if unknown or not names:
        raise ValueError(
            f"no stage {', '.join(map(repr, unknown)) or repr(text)}; legal: {', '.join(STAGES)}"
        )
    return names
