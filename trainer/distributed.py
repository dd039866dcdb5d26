"""The ranks of a launch: their devices and groups, and errors raised on all ranks."""

from __future__ import annotations

import logging
import os
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any, Literal, TypeVar

import torch
import torch.distributed as dist

from trainer.errors import CheckpointError, LaunchError, RunError
from trainer.process import run_on_node_of
from trainer.provenance import cuda_driver
from trainer.run import device_kind

SHORTEST_TIMEOUT_SECONDS = 60.0
TIMEOUT_SHARE = 0.9
"""Timeout of a collective as a fraction of the supervisor's hang limit."""
FLIGHT_RECORDER = {
    "TORCH_FR_BUFFER_SIZE": "2000",
    "TORCH_NCCL_DUMP_ON_TIMEOUT": "1",
    "TORCH_NCCL_ENABLE_TIMING": "1",  # measures durations of collectives by events
}
LISTENER = "TRAINYARD_STORE_FD"
"""Variable of a launch without torchrun: the descriptor on which rank 0 listens at `MASTER_PORT` to
serve the store. All ranks have the variable, but only rank 0 uses its value.
"""
SAVING_TIMEOUT_SECONDS = 3600.0
"""Minimum timeout of the CPU group, in seconds. In this group, ranks wait while other ranks read
and write files.
"""
STARTING_SECONDS = 600.0
"""The supervisor's hang limit, in seconds, from the start until the ranks read data or weights."""
COMPILING_SECONDS = 3600.0
"""The supervisor's hang limit, in seconds, while the ranks compile."""


@dataclass(frozen=True)
class Ranks:
    """This process as one of the attempt's ranks."""

    rank: int
    """Global rank."""
    world_size: int
    """Number of ranks in the attempt."""
    device: torch.device
    """Device on which this rank computes."""
    cpu_group: dist.ProcessGroup
    """Group of all ranks over gloo, for counters, digests, checkpoints and rank 0's decisions. Only
    the training thread uses it, because collectives must have the same order on all ranks.
    """

    @property
    def leads(self) -> bool:
        """Whether this process is global rank 0."""
        return self.rank == 0


@contextmanager
def joined(
    device: Literal["auto", "cpu", "cuda"],
    *,
    hang_seconds: float,
    flight_recorder: Path | None = None,
) -> Iterator[Ranks]:
    """Join the process group of the launch; destroy it after all ranks have finished.

    The ranks meet through torchrun's environment, or at a port on which rank 0 already listens.
    Without either, this process is the only rank. After an error the group stays, because its
    destruction would wait for ranks that may never arrive.

    Args:
        device: type of device; `auto` prefers a GPU.
        hang_seconds: as for `collective_timeout`.
        flight_recorder: folder to which each rank writes its last collectives after a timeout on
            CUDA; by default, the ranks record no collectives.

    Raises:
        LaunchError: a GPU is requested or present, but this rank cannot use one.
    """
    local = _local_device(device)
    backend = "cpu:gloo,cuda:nccl" if local.type == "cuda" else "gloo"
    if local.type == "cuda" and flight_recorder is not None:
        record_collectives(flight_recorder)
    # Otherwise gloo connects all pairs of ranks in every group at once, though few exchange data.
    os.environ.setdefault("TORCH_GLOO_LAZY_INIT", "1")
    timeout = collective_timeout(hang_seconds)
    saving_timeout = timedelta(seconds=max(hang_seconds, SAVING_TIMEOUT_SECONDS))
    device_id = local if local.type == "cuda" else None
    if LISTENER in os.environ:
        dist.init_process_group(
            backend,
            store=_store_at_listener(timeout),
            rank=int(os.environ["RANK"]),
            world_size=int(os.environ["WORLD_SIZE"]),
            timeout=timeout,
            device_id=device_id,
        )
    elif "RANK" in os.environ:
        dist.init_process_group(backend, timeout=timeout, device_id=device_id)
    else:
        store = dist.HashStore()
        dist.init_process_group(
            backend, store=store, rank=0, world_size=1, timeout=timeout, device_id=device_id
        )
    yield Ranks(
        rank=dist.get_rank(),
        world_size=dist.get_world_size(),
        device=local,
        cpu_group=dist.new_group(backend="gloo", timeout=saving_timeout, group_desc="cpu"),
    )
    dist.barrier()  # otherwise a rank could close connections that another rank still needs
    dist.destroy_process_group()


def _store_at_listener(timeout: timedelta) -> dist.Store:
    """Return the store of a launch without torchrun; rank 0 serves it on an open listener.

    The port is bound before any rank runs, so no other process can take the port.
    """
    rank, listener = int(os.environ["RANK"]), int(os.environ[LISTENER])
    return dist.TCPStore(
        os.environ["MASTER_ADDR"],
        int(os.environ["MASTER_PORT"]),
        int(os.environ["WORLD_SIZE"]),
        is_master=rank == 0,
        timeout=timeout,
        master_listen_fd=listener if rank == 0 else None,
    )


def collective_timeout(hang_seconds: float) -> timedelta:
    """Return the timeout of the collectives in training.

    The supervisor ends the attempt after `hang_seconds` without a heartbeat. Unless this limit is
    below `SHORTEST_TIMEOUT_SECONDS`, collectives time out before that, so that the ranks can still
    record the hanging collective.
    """
    return timedelta(seconds=max(TIMEOUT_SHARE * hang_seconds, SHORTEST_TIMEOUT_SECONDS))


def record_collectives(folder: Path) -> None:
    """Make NCCL's watchdog dump a rank's last collectives; keep existing environment variables."""
    folder.mkdir(exist_ok=True)
    for name, value in {**FLIGHT_RECORDER, "TORCH_FR_DUMP_TEMP_FILE": f"{folder}/rank-"}.items():
        os.environ.setdefault(name, value)


def _local_device(kind: Literal["auto", "cpu", "cuda"]) -> torch.device:
    if device_kind(kind) == "cpu":
        return torch.device("cpu")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        usable = torch.cuda.is_available()
    if not usable:
        raise LaunchError(_no_usable_gpu(kind, [str(warning.message) for warning in caught]))
    index, count = int(os.environ.get("LOCAL_RANK", "0")), torch.cuda.device_count()
    if index >= count:
        raise LaunchError(
            f"resources.device={kind!r}: local rank {index} has no GPU, {count} are visible here"
        )
    torch.cuda.set_device(index)
    return torch.device("cuda", index)


def run_near(device: torch.device) -> None:
    """Restrict this process' threads to the CPUs near a GPU; for a CPU device, do nothing.

    torchrun can do this for its ranks too, but only with numactl, which some nodes lack.
    """
    if device.type != "cuda":
        return
    properties: Any = torch.cuda.get_device_properties(device)
    domain, bus, number = (
        getattr(properties, f"pci_{name}_id") for name in ("domain", "bus", "device")
    )
    cpus = run_on_node_of(f"{domain:04x}:{bus:02x}:{number:02x}.0")
    logger.info("%s: %d CPUs", device, len(cpus))


def _no_usable_gpu(kind: str, messages: Sequence[str]) -> str:
    """Return why torch cannot use a GPU, with torch's build, torch's warnings and the driver."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    given = "GPUs are here" if visible is None else f"CUDA_VISIBLE_DEVICES={visible!r}"
    build = torch.version.cuda
    built = f"was built for CUDA {build}" if build else "was built without CUDA"
    needs = f"a driver for CUDA {build} or newer" if build else "a build of torch with CUDA"
    return (
        f"resources.device={kind!r}, {given}, but torch can use none of them: torch "
        f"{torch.__version__} {built}, and the NVIDIA driver is {cuda_driver() or 'not loaded'}; "
        + "".join(f"torch: {text.splitlines()[0]}; " for text in messages if text)
        + f"it needs {needs}, or device='cpu'"
    )


T = TypeVar("T")

logger = logging.getLogger(__name__)


def on_every_rank(group: dist.ProcessGroup, action: Callable[[], T]) -> list[T]:
    """Run `action` on each rank of a CPU group; return the results by rank.

    Raises:
        RunError: the action failed on a rank. Every rank raises the same error, which names the
            lowest rank with a permanent failure, or else the lowest failing rank.
    """
    rank = dist.get_rank(group)
    answers: list[tuple[T | None, RunError | None]] = [(None, None)] * dist.get_world_size(group)
    dist.all_gather_object(answers, mine := _try(action), group=group)
    answers[rank] = mine  # keep the original error with its cause and traceback
    failures = {r: error for r, (_, error) in enumerate(answers) if error is not None}
    if failures:
        raise _first(failures)
    return [value for value, _ in answers]  # type: ignore[misc]


def same_on_every_rank(
    group: dist.ProcessGroup, digest: Callable[[], T], *, of: str, error: type[RunError]
) -> T:
    """Return the digest of node-local files, which must be equal on all ranks of a CPU group.

    Args:
        group: group of the ranks.
        digest: computes this rank's digest.
        of: name of the files, for messages.
        error: type of the error to raise if the files differ.

    Raises:
        RunError: the computation failed on a rank, or a rank's digest differs from that of rank 0.
    """
    first, *others = on_every_rank(group, digest)
    for rank, other in enumerate(others, start=1):
        if other != first:
            raise error(
                f"rank {rank} sees other {of} than rank 0: digest {other} instead of {first}; "
                "every node needs the same files"
            )
    return first


def on_rank_0(group: dist.ProcessGroup, action: Callable[[], T]) -> T:
    """Run `action` on rank 0 of a CPU group and return its result on every rank.

    Raises:
        RunError: the action failed; every rank raises the same error.
    """
    leads = dist.get_rank(group) == 0
    answer = [_try(action) if leads else (None, None)]
    mine = answer[0]
    dist.broadcast_object_list(answer, group=group, group_src=0)
    value, error = mine if leads else answer[0]
    if error is not None:
        raise error
    return value  # type: ignore[return-value]


def _try(action: Callable[[], T]) -> tuple[T | None, RunError | None]:
    try:
        return action(), None
    except RunError as error:
        return None, error
    except Exception as error:
        function = getattr(action, "func", action)  # the function of a `partial`
        logger.exception("unexpected failure of %s", getattr(function, "__qualname__", function))
        return None, _as_run_error(error)


def _as_run_error(error: Exception) -> RunError:
    found = CheckpointError(f"{type(error).__name__}: {error}")
    found.__cause__ = error
    return found


def _first(failures: Mapping[int, RunError]) -> RunError:
    """Return the lowest rank's permanent failure, or else the lowest rank's temporary failure."""
    rank = min(failures, key=lambda rank: (getattr(failures[rank], "transient", False), rank))
    error = failures[rank]
    named = type(error)(f"rank {rank}: {error}", path=error.path)
    named.__dict__.update(vars(error))  # attributes of the error's type, such as `transient`
    named.__cause__ = error
    return named
