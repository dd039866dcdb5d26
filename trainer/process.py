"""The process of a rank: its signals, CPUs and garbage collection, and the end of its parent.

An automatic collection walks every object at a different time on each rank, and the other ranks
then wait in the next collective. Here collections run after the same steps on all ranks, and skip
the objects that existed before the first step.
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
    """Let the kernel kill this process when its parent dies, so that no rank trains unsupervised.

    Call this as early as possible, because an exit of the parent before the call goes unnoticed.
    """
    parent = os.getppid()
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # the parent died between the two calls
        os._exit(1)


def show_stacks_when_asked() -> None:
    """Print all threads' stacks to stderr on `STACKS_SIGNAL`, even if Python code hangs.

    An earlier handler of the signal runs too.
    """
    former = signal.getsignal(STACKS_SIGNAL)
    # Without an earlier handler, chaining would run the signal's default action, which ends the
    # process.
    chain = former not in (signal.SIG_DFL, signal.SIG_IGN, None)
    faulthandler.register(STACKS_SIGNAL, file=sys.stderr, all_threads=True, chain=chain)


def stop_on_sigterm(directory: RunDirectory) -> None:
    """Install a SIGTERM handler that creates the file `stop`, so that the run saves and ends.

    torchrun forwards its own SIGTERM, for example from a scheduler, to all ranks. torchrun also
    sends SIGTERM after the failure of a rank. So without a supervisor, SIGTERM ends this process if
    a failure is already recorded. A rank with a supervisor ignores SIGTERM: Slurm sends the signal
    to every process of a step, and the supervisor creates `stop`. SIGTERM ends a process forked
    from this process.
    """
    supervised, own_pid = directory.secret.exists(), os.getpid()

    def stop(_number: int, _frame: object) -> None:
        if os.getpid() != own_pid or (directory.error.exists() and not supervised):
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            signal.raise_signal(signal.SIGTERM)
        if not supervised:
            with contextlib.suppress(OSError):  # for example a full disk: the next SIGTERM retries
                order_stop(directory)

    signal.signal(signal.SIGTERM, stop)


@contextmanager
def importing_without_collector() -> Iterator[None]:
    """Disable the collector during imports; afterwards it skips the imported objects.

    Repeated collections take a fifth of the import time of torch.
    """
    with collector_disabled():
        yield
        gc.freeze()


def prefer_growing_segments(environment: MutableMapping[str, str]) -> None:
    """Set torch's CUDA allocator to expandable segments, unless a variable configures it.

    Segments of fixed size become fragmented if the sizes of blocks vary. torch reads the variable
    when it is imported.
    """
    if "PYTORCH_CUDA_ALLOC_CONF" not in environment:  # older name of the variable
        environment.setdefault("PYTORCH_ALLOC_CONF", "expandable_segments:True")


def run_on_node_of(pci_address: str, *, system: Path = Path("/sys")) -> frozenset[int]:
    """Restrict all threads of this process to a device's NUMA node; return the remaining CPUs.

    Memory of another NUMA node is slower, also for copies to the device. The CPUs stay unchanged if
    the machine has one NUMA node, if the device's node is unknown, or if this process may use none
    of that node's CPUs.

    Args:
        pci_address: address of the device, such as `0000:dc:00.0`.
        system: mount point of sysfs.
    """
    allowed = frozenset(os.sched_getaffinity(0))
    nodes = system / "devices" / "system" / "node"
    try:
        number = int((system / "bus" / "pci" / "devices" / pci_address / "numa_node").read_text())
        near = allowed & cpus_in((nodes / f"node{number}" / "cpulist").read_text())
    except OSError:  # on a machine with one NUMA node, the number is often -1
        return allowed
    if not near:
        return allowed
    for thread in Path("/proc/self/task").iterdir():
        with contextlib.suppress(OSError):  # the thread has ended, or a sandbox forbids the call
            os.sched_setaffinity(int(thread.name), near)
    return frozenset(os.sched_getaffinity(0))


def cpus_in(text: str) -> frozenset[int]:
    """Return the CPUs in a sysfs list, such as `0-3,8`."""
    ranges = [part.partition("-") for part in text.strip().split(",") if part]
    return frozenset(
        cpu for first, _, last in ranges for cpu in range(int(first), int(last or first) + 1)
    )


def leave(code: int) -> NoReturn:
    """Flush the output and end this process without running finalizers.

    After a failure, peers may be dead and collectives pending. Threads of the communication
    libraries would then block the interpreter's exit, and the other ranks would wait.
    """
    logging.shutdown()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


@contextmanager
def collector_disabled() -> Iterator[None]:
    """Disable Python's garbage collector during a block that creates many small objects."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


class StepCollector:
    """Collects garbage after the same steps on all ranks; disables automatic collections."""

    def __init__(self, every_steps: int) -> None:
        """Collect every `every_steps` steps, which limits the lifetime of cycles with tensors."""
        self._every_steps = every_steps
        self._contexts = ExitStack()
        self.seconds = 0.0
        """Time of all collections after steps so far, in seconds."""

    def __enter__(self) -> Self:
        """Collect once; later collections ignore all objects that then exist."""
        gc.collect()
        gc.freeze()
        self._contexts.callback(gc.unfreeze)
        self._contexts.enter_context(collector_disabled())
        return self

    def __exit__(self, *_: object) -> None:
        """Enable automatic collections of all objects again."""
        self._contexts.close()

    def step_done(self, step: int) -> None:
        """Collect if a collection is due after step `step`."""
        if step % self._every_steps == 0:
            started = time.perf_counter()
            gc.collect()
            self.seconds += time.perf_counter() - started
