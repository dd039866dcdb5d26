"""The memory model against the trainer itself, tracked tensor by tensor without any memory.

A fake process group and fake tensors run one rank's step as in a large job; the tracker records the
peak of live bytes. The kernels are those of the CPU.
"""

from contextlib import nullcontext
from typing import Any, NamedTuple

import pytest
import torch
import torch.distributed as dist
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.distributed._tools.mem_tracker import MemTracker
from torch.testing._internal.distributed.fake_pg import FakeStore

from tests.library.planner.specs_for_tests import job
from tests.trainer.ranks import run_ranks
from trainer.loop.optimizer import build_optimizer, materialize_state
from trainer.models.families import build_model
from trainer.models.stateless_rng import sequence_keys
from trainer.parallel.fsdp import set_gradient_sync
from trainer.parallel.mesh import build_mesh
from trainer.parallel.parallelize import parallelize
from trainyard.planner.memory import estimate_memory
from trainyard.spec.job import JobSpec
from trainyard.training.batch_partition import BatchPartition


class Case(NamedTuple):
    """A job, and the tolerance of its estimate."""

    name: str
    spec: JobSpec
    tolerance: float


def case(name: str, world_size: int, *, tolerance: float = 0.03, **sections: Any) -> Case:
    training = {"param_dtype": "bfloat16", "micro_batch_size": 1} | sections.pop("training")
    training.setdefault("global_batch_size", world_size * training["micro_batch_size"])
    resources = {"device": "cpu"}
    spec = job(world_size, training=training, resources=resources, **sections)
    return Case(name, spec, tolerance)


SMALL = {"dim": 512, "n_layers": 8, "n_heads": 8, "n_kv_heads": 4, "ffn_dim": 1536}
CASES = [
    case("loss", 64, model={"size": "1B"}, training={"seq_len": 2048}, tolerance=0.01),
    case(
        "loss, replicas, no layer freed, dropout",
        4,
        model={"size": "1B", "n_layers": 8, "dropout": 0.1},
        training={"seq_len": 2048},
        parallelism={"dp_replicate": 2, "reshard_after_forward": "never"},
    ),
    case("head", 8, model={"size": "8B", "n_layers": 2}, training={"seq_len": 256}, tolerance=0.01),
    case(
        "head, no layer freed",
        8,
        model={"size": "8B", "n_layers": 2},
        training={"seq_len": 256},
        parallelism={"reshard_after_forward": "never"},
        tolerance=0.01,
    ),
    case(
        "embedding, no layer freed, tied",
        4,
        model={"size": "1B", "n_layers": 4},
        training={"seq_len": 16},
        parallelism={"reshard_after_forward": "never"},
        tolerance=0.01,
    ),
    case(
        "block",
        2,
        model=SMALL,
        training={"seq_len": 512, "param_dtype": "float32", "micro_batch_size": 4},
        tolerance=0.05,
    ),
    case(
        "embedding, tied, several rounds",
        4,
        model={"size": "1B", "n_layers": 4},
        training={"seq_len": 1024, "param_dtype": "float32", "global_batch_size": 12},
        tolerance=0.08,
    ),
    case(
        "block, one rank, several rounds",
        1,
        model=SMALL,
        training={"seq_len": 512, "param_dtype": "float32", "global_batch_size": 2},
        tolerance=0.05,
    ),
    case(
        "loss, one rank, weights in bfloat16",
        1,
        model={"size": "1B", "n_layers": 8},
        training={"seq_len": 2048, "weight_dtype": "bfloat16"},
        optimizer={"state_dtype": "bfloat16"},
    ),
    case(
        "head, weights in bfloat16",
        8,
        model={"size": "8B", "n_layers": 2},
        training={"seq_len": 256, "weight_dtype": "bfloat16"},
        optimizer={"state_dtype": "bfloat16"},
        tolerance=0.01,
    ),
    case(
        "embedding, weights in bfloat16",
        4,
        model={"size": "8B", "n_layers": 4},
        training={"seq_len": 64, "weight_dtype": "bfloat16"},
        optimizer={"state_dtype": "bfloat16"},
        tolerance=0.01,
    ),
    case(
        "embedding, sums in bfloat16",
        4,
        model={"size": "8B", "n_layers": 4},
        training={"seq_len": 64, "reduce_dtype": "bfloat16"},
        tolerance=0.01,
    ),
    case(
        "embedding, one rank",
        1,
        model={"size": "8B", "n_layers": 4},
        training={"seq_len": 64, "param_dtype": "float32"},
    ),
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_the_estimate_is_what_the_trainer_holds(case: Case) -> None:
    spec = case.spec
    layout = spec.layout()
    training = spec.training
    partition = BatchPartition(training.global_batch_size, training.micro_batch_size, layout.dp)
    estimated = estimate_memory(spec, layout, partition)
    (tracked,) = run_ranks(
        1, peak_of_a_step, spec, partition.rounds, initialize=False, timeout_seconds=300
    )
    assert estimated.peak_at == case.name.split(",")[0]
    assert estimated.total - estimated.slack == pytest.approx(tracked, rel=case.tolerance)


def peak_of_a_step(spec: JobSpec, rounds: int) -> int:
    """Return the peak of live bytes in one rank's step."""
    layout = spec.layout()
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=layout.world_size)
    model: Any = build_model(spec)  # becomes an FSDPModule as well
    parallelize(model, build_mesh(layout, "cpu"), spec=spec, layout=layout)
    with FakeTensorMode(allow_non_fake_inputs=True):
        model.to_empty(device="cpu")
        optimizer = build_optimizer(model, spec)
        materialize_state(optimizer)
        tokens = torch.zeros(
            spec.training.micro_batch_size, spec.training.seq_len, dtype=torch.int64
        )
        places = torch.arange(tokens.shape[0])
        keys = sequence_keys(0, 1, places) if spec.model.dropout else None
        # Not `FSDPMemTracker`: it hooks each module of a group. Norm and head share one, so they
        # would be gathered and summed twice, and the peak would be too high.
        tracker = MemTracker()
        tracker.track_external(model, optimizer, tokens)
        # The first step is not tracked: it computes shardings on tensors of full size.
        for context in (nullcontext(), tracker):
            with context:
                for index in range(rounds):
                    tracker.reset_mod_stats()
                    set_gradient_sync(model, spec, last_round=index == rounds - 1)
                    model(tokens, tokens, keys_B=keys).backward()
                optimizer.step()
                optimizer.zero_grad()
    return int(tracker.get_tracker_snapshot("peak")[torch.device("cpu")]["Total"])
