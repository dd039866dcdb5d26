"""The memory model against published and measured peaks, and invariants of every job."""

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import pytest

from tests.library.planner.specs_for_tests import job
from trainyard.planner.activations import activations_of_the_head
from trainyard.planner.memory import Step, estimate_memory
from trainyard.planner.parameters import count_parameters
from trainyard.planner.rank_contents import parts_of
from trainyard.planner.results import MemoryEstimate
from trainyard.spec.layout import Layout
from trainyard.training.batch_partition import BatchPartition

GIB = 2**30
ONE_RANK = Layout()
DOCS = Path(__file__).parents[3] / "docs" / "planner.md"


class WholeLogits(Step):
    """The step of a script without a chunked loss, like all measured ones.

    For each logit it holds, in float32, the log-softmax, the gradient of the loss by that, and the
    gradient by the logit, in addition to the logit itself.
    """

    def at_loss(self) -> MemoryEstimate:
        return self.moment(
            "loss",
            gathered=self.weights(self.head + self.parameters.final_norm),
            activations=self.kept + activations_of_the_head(self.spec, tokens=self.tokens),
            logits=(12 + self.compute) * self.tokens * self.rows,
        )


class Measured(NamedTuple):
    """One published peak, and its case in this project's terms."""

    case: str
    gib: float
    size: str
    layout: dict[str, int]
    micro_batch_size: int
    seq_len: int
    mode: str
    reserved: bool = True
    parallelism: Mapping[str, Any] = MappingProxyType({})

    @property
    def estimate_gib(self) -> float:
        memory = self.estimate()
        return (memory.total if self.reserved else memory.total - memory.slack) / GIB

    def estimate(self) -> MemoryEstimate:
        spec = job(
            model={"size": self.size},
            training={"seq_len": self.seq_len, "param_dtype": "bfloat16"},
            activation_checkpoint={"mode": self.mode},
            parallelism=dict(self.parallelism),
            resources={} if self.reserved else {"device": "cpu"},
        )
        layout = Layout(**self.layout)
        batch, size = self.micro_batch_size * layout.dp, self.micro_batch_size
        (part,) = parts_of(spec, layout)
        return WholeLogits(
            spec, layout, partition=BatchPartition(batch, size, layout.dp), part=part
        ).estimate()

    @property
    def row(self) -> str:
        """The line of docs/planner.md."""
        kind = "reserved" if self.reserved else "allocated"
        off = self.estimate_gib / self.gib - 1
        return f"| {self.case} | {kind} {self.gib:.1f} | {self.estimate_gib:.1f} | {off:+.0%} |"


# Reserved: torchtitan's tables of December 2024 on H100 (benchmarks/llama3_h100_202412). Allocated:
# FSDPMemTracker's peak on fake tensors with CPU kernels, one rank's view.
MEASURED = [
    Measured("8B, FSDP 8, batch 2, selective", 82.4, "8B", {"dp_shard": 8}, 2, 8192, "selective"),
    Measured(
        "8B, FSDP 128, batch 2, selective", 67.0, "8B", {"dp_shard": 128}, 2, 8192, "selective"
    ),
    Measured("8B, FSDP 8, sequence 32768, full", 83.9, "8B", {"dp_shard": 8}, 1, 32_768, "full"),
    Measured(
        "8B, FSDP 2 x CP 4, sequence 131072, full",
        84.0,
        "8B",
        {"dp_shard": 2, "cp": 4},
        1,
        131_072,
        "full",
    ),
    Measured(
        "70B, FSDP 32 x TP 8, batch 16, full",
        71.9,
        "70B",
        {"dp_shard": 32, "tp": 8},
        16,
        8192,
        "full",
    ),
    Measured("8B, FSDP 64, none", 69.6, "8B", {"dp_shard": 64}, 1, 8192, "none", reserved=False),
    Measured("8B, FSDP 64, full", 15.5, "8B", {"dp_shard": 64}, 1, 8192, "full", reserved=False),
    Measured(
        "8B, FSDP 8 x TP 8, whole logits, none",
        24.1,
        "8B",
        {"dp_shard": 8, "tp": 8},
        1,
        8192,
        "none",
        reserved=False,
        parallelism={"loss_parallel": False},
    ),
]

# Runs with a compiled loss, which the model does not cover: 32 H200, compile and float8.
COMPILED_LOSS = Measured(
    "8B, FSDP 32, batch 2, selective, compiled loss, float8",
    48.0,
    "8B",
    {"dp_shard": 32},
    2,
    8192,
    "selective",
)


@pytest.mark.parametrize("measured", MEASURED, ids=lambda m: m.case)
def test_estimates_are_within_a_fifth_of_what_was_measured(measured: Measured) -> None:
    assert measured.estimate_gib == pytest.approx(measured.gib, rel=0.2)


@pytest.mark.parametrize("measured", [*MEASURED, COMPILED_LOSS], ids=lambda m: m.case)
def test_the_table_of_the_documentation_is_that_of_the_model(measured: Measured) -> None:
    assert measured.row in DOCS.read_text(encoding="utf-8").splitlines()


def estimate(
    layout: Layout = ONE_RANK, *, micro_batch_size: int = 2, rounds: int = 1, **sections: Any
) -> MemoryEstimate:
    batch = micro_batch_size * layout.dp * rounds
    return estimate_memory(
        job(**sections), layout, BatchPartition(batch, micro_batch_size, layout.dp)
    )


@pytest.mark.parametrize("mode", ["none", "selective", "full", "memory_budget"])
@pytest.mark.parametrize("size", ["debug", "8B"])
def test_the_parts_add_up(mode: str, size: str) -> None:
    memory = estimate(model={"size": size}, activation_checkpoint={"mode": mode})
    parts = memory.model_dump(exclude={"peak_at", "total"})
    assert sum(parts.values()) == memory.total


def test_states_are_sharded_over_one_replica() -> None:
    total = count_parameters(job().architecture).total
    for layout in (Layout(dp_shard=4), Layout(dp_replicate=3, dp_shard=4)):
        memory = estimate(layout)
        assert memory.weights == -(-total // 4) * 4
        assert memory.optimizer_states == 2 * memory.weights
    assert estimate(Layout(dp_replicate=4)).weights == 4 * total


def test_bfloat16_moments_take_half() -> None:
    full, half = (
        estimate(optimizer={"state_dtype": dtype}).optimizer_states
        for dtype in ("float32", "bfloat16")
    )
    assert half * 2 == full


def test_gradients_wait_as_shards_or_whole_from_the_second_round_on() -> None:
    total = count_parameters(job().architecture).total
    for mode, waiting in (("default", total), ("always", total), ("never", 4 * total)):
        once, twice, thrice = (
            estimate(
                Layout(dp_shard=4),
                rounds=rounds,
                training={"seq_len": 2048},
                parallelism={"reshard_after_forward": mode},
                resources={"device": "cpu"},
            )
            for rounds in (1, 2, 3)
        )
        assert once.peak_at == twice.peak_at == "loss"
        assert (once.gradients, twice.gradients) == (0, waiting)
        assert twice.total == once.total + twice.gradients
        assert thrice == twice


def test_offloaded_shards_take_no_device_memory() -> None:
    here, away = (
        estimate(Layout(dp_shard=2), rounds=2, optimizer={"cpu_offload": offload})
        for offload in (False, True)
    )
    assert (away.weights, away.gradients, away.optimizer_states) == (0, 0, 0)
    assert away.total == here.total - here.weights - here.gradients - here.optimizer_states


@pytest.mark.parametrize(
    # On a GPU one tensor of logits; on a CPU a product, its copy in float32 and their log-softmax.
    ("device", "seq_lens", "tokens", "bytes_each"),
    [("cuda", (12288, 16384), 8371, 2), ("cpu", (4096, 8192), 1046, 2 + 4 + 4)],
)
def test_the_logits_of_a_chunk_bound_the_loss(
    device: str, seq_lens: tuple[int, int], tokens: int, bytes_each: int
) -> None:
    """128,256 logits a token, so 1,046 tokens make a chunk of 2^27 logits, 8,371 one of 2^30."""
    sections: dict[str, Any] = {
        "model": {"size": "1B"},
        "activation_checkpoint": {"mode": "full"},
        "resources": {"device": device},
    }
    short, long = (
        estimate(
            Layout(dp_shard=64),
            micro_batch_size=1,
            training={"seq_len": seq_len, "param_dtype": "bfloat16"},
            **sections,
        )
        for seq_len in seq_lens
    )
    assert short.peak_at == long.peak_at == "loss"
    assert short.logits == long.logits == bytes_each * tokens * 128_256


def test_activation_checkpointing_trades_in_order() -> None:
    budget = {"mode": "memory_budget", "memory_budget": 0.5}
    totals = [
        estimate(Layout(dp_shard=8), model={"size": "8B"}, activation_checkpoint=section).total
        for section in ({"mode": "none"}, budget, {"mode": "selective"}, {"mode": "full"})
    ]
    assert totals == sorted(totals, reverse=True)


@pytest.mark.parametrize(
    ("peak_at", "model", "seq_len"),
    [
        ("loss", {"size": "1B"}, 8192),
        ("head", {"size": "8B", "n_layers": 2}, 256),
        ("block", {"ffn_dim": 1024}, 4096),
        ("embedding", {"size": "8B"}, 16),
    ],
)
def test_the_fullest_moment_follows_the_shape(
    peak_at: str, model: dict[str, Any], seq_len: int
) -> None:
    training = {"seq_len": seq_len, "param_dtype": "bfloat16"}
    memory = estimate(Layout(dp_shard=8), micro_batch_size=1, model=model, training=training)
    assert memory.peak_at == peak_at


def test_keeping_weights_gathered_costs_the_whole_model() -> None:
    sharded, whole = (
        estimate(
            Layout(dp_shard=8),
            model={"size": "8B"},
            training={"seq_len": 8192},
            parallelism={"reshard_after_forward": policy},
        )
        for policy in ("default", "never")
    )
    assert (sharded.peak_at, whole.peak_at) == ("loss", "loss")
    counted = count_parameters(job(model={"size": "8B"}).architecture)
    kept = counted.head + counted.final_norm
    assert whole.gathered - sharded.gathered == 4 * (counted.total - kept)


def test_float8_weights_travel_in_a_byte() -> None:
    """Tensorwise only: the other recipes need a row's or a block's scale, and gather bfloat16."""
    sections: dict[str, Any] = {
        "model": {"size": "8B"},
        "training": {"seq_len": 65_536, "param_dtype": "bfloat16"},
    }
    plain, rows, tensor = (
        estimate(Layout(dp_shard=8), quantization={"recipe": recipe}, **sections)
        for recipe in ("none", "float8_rowwise", "float8_tensorwise")
    )
    assert plain.peak_at == "block"
    assert rows == plain
    counted = count_parameters(job(**sections).architecture)
    matrices = counted.attention + counted.feed_forward
    assert plain.gathered - tensor.gathered == 2 * matrices  # two blocks, a byte less each
    left_out = {"recipe": "float8_tensorwise", "exclude": ["feed_forward"], "min_dim": 1025}
    some = estimate(Layout(dp_shard=8), quantization=left_out, **sections)
    # Keys and values are 1,024 wide.
    assert plain.gathered - some.gathered == 2 * 2 * 4096 * 4096


@pytest.mark.parametrize(
    ("layout", "matrices"),
    [
        (Layout(dp_shard=7), 2 * 4096 * 14_336),  # the 4,096 rows of the others are no multiple
        (Layout(dp_shard=3), 0),
        (Layout(dp_replicate=2), 2 * 4096 * (4096 + 1024) + 3 * 4096 * 14_336),
    ],
    ids=str,
)
def test_float8_weights_travel_in_a_byte_where_their_rows_divide(
    layout: Layout, matrices: int
) -> None:
    sections: dict[str, Any] = {
        "model": {"size": "8B"},
        "training": {"seq_len": 65_536, "param_dtype": "bfloat16", "global_batch_size": 42},
    }
    plain, tensor = (
        estimate(layout, quantization={"recipe": recipe}, **sections)
        for recipe in ("none", "float8_tensorwise")
    )
    assert plain.gathered - tensor.gathered == 2 * matrices


def test_dropout_keeps_a_byte_for_each_element_of_two_branches() -> None:
    kept, more = (estimate(model={"dropout": p}).activations for p in (0.0, 0.1))
    shape = job().architecture
    assert more - kept == shape.n_layers * 2 * shape.dim * 2 * job().training.seq_len


def test_norms_keep_more_on_a_cpu() -> None:
    training = {"param_dtype": "bfloat16"}
    gpu, cpu = (
        estimate(training=training, resources={"device": device}).activations
        for device in ("cuda", "cpu")
    )
    assert cpu > gpu
