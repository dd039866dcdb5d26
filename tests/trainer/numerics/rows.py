"""The rows of the numerics table: a layout and further fields of its spec."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from trainyard.spec.layout import Layout

# Large enough to be cut on every axis: 4 layers for two stages on each of two pipeline ranks, 8
# heads of 4 keys for tensor times context parallelism.
SPEC: dict[str, Any] = {
    "name": "numerics",
    "model": {"size": "debug", "n_layers": 4, "n_heads": 8, "n_kv_heads": 4, "dropout": 0.1},
    "data": {"source": "text", "path": "data:text.txt"},
    "training": {"steps": 10, "seq_len": 64, "global_batch_size": 16, "micro_batch_size": 4},
    "optimizer": {"lr": 3e-3},
    "lr_schedule": {"warmup_steps": 2},
    "checkpoint": {"interval_steps": 0, "preflight": False},
}


@dataclass(frozen=True)
class Row:
    """One line of the table."""

    layout: Layout
    parallelism: dict[str, Any] = field(default_factory=dict)
    """Fields of the section `parallelism` other than the axes."""
    sections: dict[str, dict[str, Any]] = field(default_factory=dict)
    """Other sections; the reference on one rank shares those that affect the results."""
    slow: bool = False
    """Only in `make test-all`: quicker rows cover the same."""

    @property
    def options(self) -> str:
        """The fields of its spec other than the layout, as text."""
        named = {**self.parallelism}
        for name, section in self.sections.items():
            named |= {f"{name}.{key}": value for key, value in section.items()}
        return ", ".join(f"{key}={value}" for key, value in named.items())

    @property
    def computes(self) -> dict[str, dict[str, Any]]:
        """The sections that determine the results, and not how they are computed."""
        return {k: v for k, v in self.sections.items() if k not in HOW_IT_RUNS}

    def __str__(self) -> str:
        return f"{self.layout} {self.options}".strip()


HOW_IT_RUNS = {"activation_checkpoint", "compile"}


def row(
    *, slow: bool = False, sections: dict[str, dict[str, Any]] | None = None, **axes: Any
) -> Row:
    """Return a row; options other than axes belong to the section `parallelism`."""
    layout = {name: axes.pop(name) for name in list(axes) if name in Layout.model_fields}
    return Row(Layout(**layout), axes, sections or {}, slow)


def recompute(mode: str, **fields: Any) -> dict[str, dict[str, Any]]:
    """Return the section that makes backward recompute activations."""
    return {"activation_checkpoint": {"mode": mode, **fields}}


DOCUMENTS = {"data": {"path": "data:documents", "document_masks": True}}
TIED = {
    "model": {
        "size": "1B",
        "dim": 64,
        "n_layers": 4,
        "n_heads": 8,
        "n_kv_heads": 4,
        "ffn_dim": 192,
        "vocab_size": 320,
    }
}
QWEN3 = {"model": {"family": "qwen3"}}
QWEN3_UNTIED = {"model": {"family": "qwen3", "tied_embeddings": False}}
DEEPER = {"model": {"n_layers": 8}}
EIGHT_DEALT = {"training": {"micro_batch_size": 2}}
# A run of six micro-batches, one of them empty.
FIVE_DEALT = {"training": {"global_batch_size": 20}}
COMPILED = {"compile": {"enabled": True, "backend": "aot_eager"}}

ROWS: tuple[Row, ...] = (
    # Every axis alone.
    row(dp_shard=2),
    row(dp_shard=4, slow=True),
    row(dp_shard=8, sections=EIGHT_DEALT, slow=True),
    row(dp_replicate=2),
    row(dp_replicate=4, slow=True),
    row(dp_replicate=2, dp_shard=2),
    row(dp_replicate=2, dp_shard=4, sections=EIGHT_DEALT, slow=True),
    row(dp_replicate=4, dp_shard=2, sections=EIGHT_DEALT, slow=True),
    row(tp=2),
    row(tp=4),
    row(tp=2, sequence_parallel=False),
    row(tp=2, loss_parallel=False),
    row(tp=4, sequence_parallel=False, loss_parallel=False, slow=True),
    row(cp=2),
    row(cp=4),
    row(cp=2, cp_method="ulysses"),
    row(cp=4, cp_method="ulysses", slow=True),
    # Every schedule.
    row(pp=2, pp_schedule="GPipe"),
    row(pp=2, pp_schedule="1F1B"),
    row(pp=2, pp_schedule="Interleaved1F1B"),
    row(pp=2, pp_schedule="InterleavedZeroBubble"),
    row(pp=2, pp_schedule="ZBVZeroBubble"),
    row(pp=4, pp_schedule="1F1B", slow=True),
    row(pp=4, pp_schedule="Interleaved1F1B", sections=DEEPER, slow=True),
    row(pp=4, pp_schedule="InterleavedZeroBubble", sections=DEEPER, slow=True),
    row(pp=4, pp_schedule="ZBVZeroBubble", sections=DEEPER, slow=True),
    row(pp=2, pp_microbatches=2, slow=True),
    row(pp=2, pp_schedule="Interleaved1F1B", sections=FIVE_DEALT, slow=True),
    row(pp=2, pp_layers_per_stage=3),
    # Every reshard mode.
    row(dp_shard=2, reshard_after_forward="always"),
    row(dp_shard=2, reshard_after_forward="never"),
    row(dp_replicate=2, dp_shard=2, reshard_after_forward="never", slow=True),
    row(pp=2, dp_shard=2, reshard_after_forward="always"),
    row(pp=2, dp_shard=2, reshard_after_forward="never", slow=True),
    # Every way to recompute.
    row(dp_shard=2, sections=recompute("full")),
    row(dp_shard=2, sections=recompute("selective")),
    row(dp_shard=2, sections=recompute("memory_budget", memory_budget=0.5) | COMPILED, slow=True),
    row(dp_shard=2, sections=COMPILED, slow=True),
    row(pp=2, sections=COMPILED, slow=True),
    row(cp=2, pp=2, sections=COMPILED, slow=True),
    row(cp=2, pp=2, cp_method="ulysses", sections=COMPILED | DOCUMENTS, slow=True),
    row(cp=2, pp=2, pp_schedule="Interleaved1F1B", sections=COMPILED, slow=True),
    row(cp=2, pp=2, sections=COMPILED | recompute("full"), slow=True),
    row(pp=2, dp_shard=2, sections=recompute("full"), slow=True),
    row(tp=2, dp_shard=2, sections=recompute("selective"), slow=True),
    # Every pair of axes.
    row(dp_shard=2, tp=2),
    row(dp_replicate=2, tp=2, slow=True),
    row(dp_shard=2, cp=2),
    row(dp_replicate=2, cp=2, slow=True),
    row(dp_shard=2, pp=2, slow=True),
    row(dp_replicate=2, pp=2, slow=True),
    row(cp=2, tp=2),
    row(cp=2, tp=2, cp_method="ulysses", slow=True),
    row(tp=2, pp=2),
    row(cp=2, pp=2),
    # Three and more.
    row(dp_replicate=2, dp_shard=2, tp=2),
    row(dp_replicate=2, dp_shard=2, cp=2, slow=True),
    row(dp_replicate=2, dp_shard=2, pp=2, sections=EIGHT_DEALT, slow=True),
    row(dp_shard=2, tp=2, pp=2),
    row(dp_shard=2, tp=2, pp=2, pp_schedule="ZBVZeroBubble", slow=True),
    row(dp_shard=2, cp=2, tp=2),
    row(dp_replicate=2, cp=2, tp=2),
    row(cp=2, tp=2, pp=2, slow=True),
    row(dp_replicate=2, cp=2, tp=2, pp=2, slow=True),
    # What the models and the data add.
    row(dp_shard=2, tp=2, sections=TIED, slow=True),
    row(dp_shard=2, cp=2, sections=TIED, slow=True),
    row(tp=2, pp=2, sections=QWEN3_UNTIED, slow=True),
    row(dp_shard=2, cp=2, sections=QWEN3, slow=True),
    row(dp_shard=2, tp=2, sections=DOCUMENTS, slow=True),
    row(cp=2, sections=DOCUMENTS),
    row(cp=2, cp_method="ulysses", sections=DOCUMENTS, slow=True),
    row(pp=2, cp=2, sections=DOCUMENTS, slow=True),
)
