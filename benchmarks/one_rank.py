"""One rank of many, alone in a process: the bytes that it sends and holds in a trainer's step.

A fake process group stands for the other ranks, and fake tensors for memory, so that Llama 8B on
eight ranks needs neither. The counts depend only on shapes and types, and are the same on every
machine; docs/performance.md lists them. Kernels are those of the CPU.
"""

from __future__ import annotations

import multiprocessing
import weakref
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar
from unittest import mock

import numpy as np
import torch
import torch.distributed as dist
from torch._guards import active_fake_mode
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.distributed.distributed_c10d import GroupName, _resolve_process_group
from torch.testing._internal.distributed.fake_pg import FakeStore
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from trainer.data.batches import MicroBatch
from trainer.loop.optimizer import ShardAdamW, build_optimizer, materialize_state
from trainer.loop.step import ForwardBackward, MicroBatchLoop, TrainStep
from trainer.models.base import Model
from trainer.models.families import build_model
from trainer.parallel.mesh import build_mesh
from trainer.parallel.parallelize import parallelize
from trainer.parallel.quantize import keep_scales_fresh, refresh_scales
from trainyard.spec.job import JobSpec
from trainyard.spec.layout import Layout
from trainyard.spec.sections.parallelism import CompileSection
from trainyard.training.batch_partition import BatchPartition

Result = TypeVar("Result")
PRELOAD = ["torch._dynamo", "trainer.parallel.pipeline", "benchmarks.one_rank"]
NAMESPACES = ("c10d", "_c10d_functional", "_c10d_functional_autograd", "_dtensor")
NO_PAYLOAD = ("barrier", "waittensor", "wraptensor", "recv")
"""Operations that wait or wrap a wait, and the receiving end of a `send`."""
KINDS = {
    "allgather": "all_gather",
    "reducescatter": "reduce_scatter",
    "allreduce": "all_reduce",
    "alltoall": "all_to_all",
    "broadcast": "broadcast",
    "send": "send",
}


@dataclass(frozen=True)
class StepCost:
    """The bytes that one rank sends and holds in one step."""

    sent: dict[str, int]
    """Sent bytes by kind of collective."""
    peak: int
    """Peak bytes of the storages of live tensors, each counted once."""


class Collectives(TorchDispatchMode):
    """Counts the bytes that this rank sends, by kind of collective.

    In a group of n ranks that is (n - 1) / n of the whole tensor for an all-gather or a
    reduce-scatter, and twice that for an all-reduce, as in rings and trees. An all-to-all keeps the
    rank's own part; a broadcast is counted whole.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.sent: Counter[str] = Counter()

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Run an operation after tensor wrappers have been unwrapped."""
        if _wrapped(types):
            return NotImplemented
        result = func(*args, **(kwargs or {}))
        if func.namespace in NAMESPACES:
            self._count(func, args, result)
        return result

    def _count(self, func: Any, args: Any, result: Any) -> None:
        name = func._schema.name.partition("::")[2].replace("_", "")
        if any(word in name for word in NO_PAYLOAD):
            return
        kind = next((kind for word, kind in KINDS.items() if word in name), None)
        assert kind is not None, f"{func} is an unexpected collective"
        assert "coalesced" not in name, f"{func} sends several tensors at once"
        ranks = _group(args).size()
        # The whole tensor is the output of an all-gather and the input of a reduce-scatter.
        whole = max(_bytes(t) for t in tree_leaves((args, result)) if isinstance(t, torch.Tensor))
        self.sent[kind] += {
            "all_reduce": 2 * whole * (ranks - 1) // ranks,
            "broadcast": whole,
            "send": whole,
        }.get(kind, whole * (ranks - 1) // ranks)


class LiveBytes(TorchDispatchMode):
    """Records the peak of the bytes of live tensors.

    torch's `MemTracker` does so by module, and so assumes that each module runs once in a step,
    which is false for pipeline stages. Its `FSDPMemTracker` changes the observed step: it hooks
    each module of a group, so that a group with several modules is gathered and summed once for
    each.
    """

    def __init__(self, alive: Iterable[torch.Tensor]) -> None:
        """Start with the existing tensors."""
        super().__init__()  # type: ignore[no-untyped-call]
        self.peak = self._now = 0
        self._sizes: dict[int, int] = {}
        self._mode = active_fake_mode()
        for tensor in alive:
            self._see(tensor)

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Run an operation after tensor wrappers have been unwrapped."""
        if _wrapped(types):
            return NotImplemented
        if self._mode is not None and func is torch.ops._c10d_functional.wait_tensor.default:
            return args[0]  # for fake tensors it would make a new one
        result = func(*args, **(kwargs or {}))
        # While a shape over a whole mesh is computed, fake tensors of another mode come and go.
        if active_fake_mode() is self._mode:
            for tensor in tree_leaves(result):
                if isinstance(tensor, torch.Tensor):
                    self._see(tensor)
        return result

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Record this block, including the resizing of storages."""
        resize = torch.UntypedStorage.resize_

        def resize_and_note(storage: torch.UntypedStorage, size: int) -> None:
            resize(storage, size)
            self._note(storage)

        torch.UntypedStorage.resize_ = resize_and_note  # type: ignore[method-assign, assignment]
        try:
            with self:
                yield
        finally:
            torch.UntypedStorage.resize_ = resize  # type: ignore[method-assign]

    def _see(self, tensor: torch.Tensor) -> None:
        if tensor.device.type != "meta":
            self._note(tensor.untyped_storage())

    def _note(self, storage: torch.UntypedStorage) -> None:
        key = storage._cdata
        if key not in self._sizes:
            self._sizes[key] = 0
            weakref.finalize(storage, self._forget, key)
        self._now += storage.nbytes() - self._sizes[key]
        self._sizes[key] = storage.nbytes()
        self.peak = max(self.peak, self._now)

    def _forget(self, key: int) -> None:
        self._now -= self._sizes.pop(key)


def costs_of_a_step(cases: Sequence[tuple[JobSpec, int]]) -> list[StepCost]:
    """Return the cost of a step for each job and rank.

    The step is a plain one: no metrics are gathered, nothing is saved. Compilation and async tensor
    parallelism are omitted: they change when bytes move, not how many. Each case runs in its own
    process, since torch keeps groups by name.

    Raises:
        ValueError: a job has context parallelism, in which a rank's tokens depend on values of a
            tensor; fake tensors have none.
    """
    if any(spec.layout().cp > 1 for spec, _ in cases):
        raise ValueError("cp > 1 cannot be counted without the other ranks")
    return in_processes(_cost_in_process, cases)


def in_processes(count: Callable[..., Result], cases: Sequence[tuple[Any, ...]]) -> list[Result]:
    """Return a function's result for each case, each in its own process."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(PRELOAD)
    # Two concurrently: each holds half a GiB for the graph of Llama 8B.
    with ProcessPoolExecutor(2, mp_context=context, max_tasks_per_child=1) as pool:
        return list(pool.map(count, *zip(*cases, strict=True)))


def _cost_in_process(spec: JobSpec, rank: int) -> StepCost:
    axes = spec.parallelism.model_copy(update={"async_tp": False})
    plain = spec.model_copy(update={"compile": CompileSection(enabled=False), "parallelism": axes})
    with fake_step(plain, rank) as step:
        step(1)  # not recorded: it computes the sharding on tensors of full size
        live, collectives = LiveBytes(map(_local, step.held())), Collectives()
        with live.watching(), collectives:
            step(2)
    return StepCost(dict(sorted(collectives.sent.items())), live.peak)


@dataclass(frozen=True)
class FakeStep:
    """A step of one rank on fake tensors."""

    model: Model
    optimizer: ShardAdamW
    train: TrainStep
    batches: list[MicroBatch]

    def __call__(self, number: int) -> None:
        """Run step `number`."""
        self.train(number, self.batches)

    def held(self) -> list[torch.Tensor]:
        """Return the tensors that outlive a step."""
        state = [t for s in self.optimizer.state.values() for t in s.values()]
        return [*self.model.parameters(), *self.model.buffers(), *state]


@contextmanager
def fake_step(spec: JobSpec, rank: int) -> Iterator[FakeStep]:
    """Make the process one rank of the layout, without the others."""
    torch.set_num_threads(1)
    layout, device = spec.layout(), torch.device("cpu")
    dist.init_process_group("fake", store=FakeStore(), rank=rank, world_size=layout.world_size)
    spec = spec.on_layout(layout)
    model = build_model(spec)
    mesh = build_mesh(layout, "cpu")
    stages = parallelize(model, mesh, spec=spec, layout=layout)
    with FakeTensorMode(allow_non_fake_inputs=True), ExitStack() as undone:
        model.to_empty(device=device)
        refresh_scales(model)
        optimizer = build_optimizer(model, spec)
        materialize_state(optimizer)
        keep_scales_fresh(model, optimizer)
        engine: ForwardBackward = MicroBatchLoop(model, spec, device)
        group = None
        if layout.pp > 1:
            from trainer.parallel.pipeline import Pipeline

            group = mesh.get_group("pp")
            engine = Pipeline(stages, group, spec=spec, layout=layout, device=device)
            undone.enter_context(_stages_agree())
        train = TrainStep(engine, optimizer, spec, stages=group)
        yield FakeStep(model, optimizer, train, micro_batches(spec, layout))


def _stages_agree() -> AbstractContextManager[object]:
    """Mark all stages as statically shaped, which skips their exchange of shapes."""
    from torch.distributed.pipelining.schedules import _PipelineSchedule
    from torch.distributed.pipelining.stage import InferenceMode

    def agree(_: Any, stages: list[Any], *_args: Any) -> None:
        for stage in stages:
            stage._inference_mode = InferenceMode.STATIC

    return mock.patch.object(_PipelineSchedule, "_warmup_p2p", agree)


def micro_batches(spec: JobSpec, layout: Layout) -> list[MicroBatch]:
    """Return the micro-batches of one rank's step, filled with zeros."""
    training = spec.training
    partition = BatchPartition(training.global_batch_size, training.micro_batch_size, layout.dp)
    size = min(training.micro_batch_size, training.global_batch_size)
    tokens = np.zeros((size, training.seq_len), dtype=np.int64)
    return [MicroBatch(tokens, tokens, np.arange(size), weight=1)] * partition.rounds


def _wrapped(types: Iterable[type]) -> bool:
    return any(hasattr(kind, "__tensor_flatten__") for kind in types)


def _local(tensor: torch.Tensor) -> torch.Tensor:
    return getattr(tensor, "_local_tensor", tensor)


def _bytes(tensor: torch.Tensor) -> int:
    return tensor.numel() * tensor.element_size()


def _group(args: Any) -> dist.ProcessGroup:
    for argument in args:
        if isinstance(argument, str) and argument not in {"sum", "avg", "max", "min"}:
            return _resolve_process_group(GroupName(argument))
        if isinstance(argument, torch.ScriptObject):
            try:
                return dist.ProcessGroup.unbox(argument)
            except RuntimeError:  # the kind of reduction
                continue
    raise AssertionError("every collective has a group")
