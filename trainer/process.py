"""The process of a rank: signals, end with its parent, CPUs, and the garbage collector.

An automatic collection walks every object at a different time on each rank, while the other ranks
wait in the next collective. Here collections run after the same steps on all ranks, and skip the
objects that existed before the first step.
"""

from __future__ import annotations

import contextlib
import ctypes
import faulthandler
import gc
import logging
import os
import signal
import sys
import time
from collections.abc import Iterator, MutableMapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import NoReturn, Self

from trainyard.run.control_files import order_stop
from trainyard.run.directory import STACKS_SIGNAL, RunDirectory

PR_SET_PDEATHSIG = 1  # linux/prctl.h


def die_with_parent() -> None:
    """Let the kernel kill this process when its parent dies: no rank trains unsupervised.

    Call it as early as possible: if the parent already exited, that cannot be detected.
    """
    parent = os.getppid()
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # the parent died between the two calls
        os._exit(1)


def show_stacks_when_asked() -> None:
    """Dump the stacks of all threads to stderr on `STACKS_SIGNAL`, even if Python code hangs.

    A previously installed handler runs as well.
    """
    former = signal.getsignal(STACKS_SIGNAL)
    # Without a former handler, chaining would run the signal's default action: the process' end.
    chain = former not in (signal.SIG_DFL, signal.SIG_IGN, None)
    faulthandler.register(STACKS_SIGNAL, file=sys.stderr, all_threads=True, chain=chain)


def stop_on_sigterm(directory: RunDirectory) -> None:
    """Install a SIGTERM handler that creates the `stop` file, so that the run saves and ends.

    torchrun forwards its own SIGTERM, for example from a scheduler, to all ranks. Without a
    supervisor torchrun also sends SIGTERM after a failure: if one is recorded, the signal ends this
    process. A supervisor creates `stop` itself when it receives the same signal, which Slurm sends
    to every process of a step. Its ranks ignore the signal; other signals end them. A process
    forked by this one is ended by the signal.
    """
    supervised, own_pid = directory.secret.exists(), os.getpid()

    def stop(_number: int, _frame: object) -> None:
        if os.getpid() != own_pid or (directory.error.exists() and not supervised):
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            signal.raise_signal(signal.SIGTERM)
        if not supervised:
            with contextlib.suppress(OSError):  # a full disk: the next SIGTERM retries
                order_stop(directory)

    signal.signal(signal.SIGTERM, stop)


@contextmanager
def importing_without_collector() -> Iterator[None]:
    """Disable the collector during imports, and exclude the imported objects from it afterwards.

    Repeated collections during the import of torch take a fifth of its time.
    """
    with collector_disabled():
        yield
        gc.freeze()


def prefer_growing_segments(environment: MutableMapping[str, str]) -> None:
    """Set torch's CUDA allocator to expandable segments, unless the environment configures it.

    Segments of fixed size fragment under blocks of varying size. torch reads the variable when it
    is imported.
    """
    if "PYTORCH_CUDA_ALLOC_CONF" not in environment:  # the former name of the variable
        environment.setdefault("PYTORCH_ALLOC_CONF", "expandable_segments:True")


def run_on_node_of(pci_address: str, *, system: Path = Path("/sys")) -> frozenset[int]:
    """Restrict all threads to the CPUs of a device's NUMA node; return the process' CPUs now.

    Memory of another node is slower, and so are copies between it and the device. Nothing changes
    on a machine with one node, if the node is unknown, or if this process may use none of its CPUs.

    Args:
        pci_address: address of the device, such as `0000:dc:00.0`.
        system: mount point of sysfs.
    """
    allowed = frozenset(os.sched_getaffinity(0))
    nodes = system / "devices" / "system" / "node"
    try:
        number = int((system / "bus" / "pci" / "devices" / pci_address / "numa_node").read_text())
        near = allowed & cpus_in((nodes / f"node{number}" / "cpulist").read_text())
    except OSError:  # with one node the number is often -1
        return allowed
    if not near:
        return allowed
    for thread in Path("/proc/self/task").iterdir():
        with contextlib.suppress(OSError):  # it has ended, or a sandbox forbids the call
            os.sched_setaffinity(int(thread.name), near)
    return frozenset(os.sched_getaffinity(0))


def cpus_in(text: str) -> frozenset[int]:
    """Return the CPUs of a sysfs list, such as `0-3,8`."""
    ranges = [part.partition("-") for part in text.strip().split(",") if part]
    return frozenset(
        cpu for first, _, last in ranges for cpu in range(int(first), int(last or first) + 1)
    )


def leave(code: int) -> NoReturn:
    """Flush the output and end this process without finalizers.

    After a failure peers may be dead and collectives pending; threads of the communication
    libraries would then block the interpreter's exit, and with it the other ranks.
    """
    logging.shutdown()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


@contextmanager
def collector_disabled() -> Iterator[None]:
    """Disable the collector in a block that creates many small objects."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


class StepCollector:
    """A context without automatic collections; they run after the same steps on all ranks."""

    def __init__(self, every_steps: int) -> None:
        """Collect after each `every_steps` steps: that limits the life of cycles with tensors."""
        self._every_steps = every_steps
        self._contexts = ExitStack()
        self.seconds = 0.0
        """Time of the collections after steps so far."""

    def __enter__(self) -> Self:
        """Collect, and exclude the remaining objects of the set-up from later collections."""
        gc.collect()
        gc.freeze()
        self._contexts.callback(gc.unfreeze)
        self._contexts.enter_context(collector_disabled())
        return self

    def __exit__(self, *_: object) -> None:
        """Enable automatic collections of all objects."""
        self._contexts.close()

    def step_done(self, step: int) -> None:
        """Collect if it is due after the step `step`."""
        if step % self._every_steps == 0:
            started = time.perf_counter()
            gc.collect()
            self.seconds += time.perf_counter() - started
