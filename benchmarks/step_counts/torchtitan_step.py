"""Counts a step of torchtitan's own trainer; its interpreter has none of our packages.

    PYTHONPATH=ROOT titan/bin/python -m benchmarks.step_counts.torchtitan_step WORDS

ROOT is the root of this repository, WORDS are arguments of `count` as JSON. The last line printed
has the counts as JSON. Other ranks are a fake process group, memory is fake tensors.
"""

from __future__ import annotations

import importlib
import json
import os
import runpy
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import torch
import torch.distributed as dist
from torch._subclasses.fake_tensor import FakeTensorMode, unset_fake_temporarily
from torch.testing._internal.distributed.fake_pg import FakeStore

from benchmarks.step_counts.counter import StepCounter

ON_CPU = Path(__file__).parents[2] / "examples" / "programs" / "torchtitan" / "on_cpu.py"
LOG_EVERY = 10


def count(
    ranks: int, options: list[str], *, layers: int, sequences: int, seq_len: int
) -> dict[str, Any]:
    """Return the counts of a step of Llama 8B and its operations, on rank 0.

    Args:
        ranks: ranks of the layout.
        options: options of torchtitan, with the layout.
        layers: blocks of the model.
        sequences: sequences of the rank in a step.
        seq_len: tokens of each.
    """
    os.environ |= {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": str(ranks)}
    # On a CPU it draws again until all values fit, which fake ones never do.
    torch.nn.init.trunc_normal_ = lambda tensor, *_args, **_keywords: tensor
    runpy.run_path(str(ON_CPU))
    parser = importlib.import_module("torchtitan.config").ConfigManager()
    config = parser.parse_args(
        [
            "--module=llama3",
            "--config=llama3_8b",
            "--profiler.no_enable_profiling",
            "--metrics.no_enable_tensorboard",
            f"--metrics.log_freq={LOG_EVERY}",
            f"--training.local_batch_size={sequences}",
            f"--training.seq_len={seq_len}",
            *options,
        ]
    )
    del config.model_spec.model.layers[layers:]
    shard = config.model_spec.parallelize_fn

    def shard_by_real_meshes(*words: Any, **keywords: Any) -> Any:
        with unset_fake_temporarily():
            return shard(*words, **keywords)

    config.model_spec.parallelize_fn = shard_by_real_meshes
    # It has neither data nor a tokenizer.
    config.tokenizer = config.dataloader = SimpleNamespace(build=lambda **_: None)
    torch.set_num_threads(1)
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=ranks)
    with FakeTensorMode(allow_non_fake_inputs=True):
        with StepCounter():  # not printed
            trainer = _trainer_class()(config)
        trainer.device = torch.device("cpu")  # with an index, fake tensors take it for another
        tokens = torch.zeros(sequences, seq_len, dtype=torch.int64)
        positions = torch.arange(seq_len).expand(sequences, seq_len)

        def step(number: int) -> None:
            trainer.step = number
            trainer.train_step(iter([({"input": tokens, "positions": positions}, tokens)]))

        with StepCounter():  # not printed: it includes the computation of shardings
            step(LOG_EVERY + 1)
        counter = StepCounter()
        to = torch.Tensor.to

        def to_and_count(tensor: torch.Tensor, *words: Any, **keywords: Any) -> torch.Tensor:
            # Only inputs and their number are integers; floats are on the target device already.
            moved = any(isinstance(word, torch.device) for word in words)
            if moved and tensor.dtype == torch.int64:
                if not counter.counts["host-device copies"]:
                    del counter.counts["host syncs"]  # up to here labels are counted on the host
                counter.count_copy_to_device(tensor)
            return to(tensor, *words, **keywords)

        with counter, mock.patch.object(torch.Tensor, "to", to_and_count):
            step(LOG_EVERY + 2)
    return {"counts": counter.counts, "operations": counter.operations}


def _trainer_class() -> Any:
    """Return torchtitan's trainer with meshes of real tensors."""
    module = importlib.import_module("torchtitan.trainer")

    class Trainer(module.Trainer):  # type: ignore[misc,name-defined]
        def init_distributed(self) -> Any:
            with unset_fake_temporarily():
                dims = super().init_distributed()
                dims.build_mesh()
            return dims

    return Trainer


if __name__ == "__main__":
    print(json.dumps(count(**json.loads(sys.argv[1]))))
