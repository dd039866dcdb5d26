"""Custom models: the example resumes exactly on other layouts, and misfits are refused."""

from __future__ import annotations

import shutil
import textwrap
import tomllib
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor

from tests.trainer.ranks import run_ranks
from tests.trainer.runs import SmallJob
from trainer.check import check_run
from trainer.errors import LaunchError
from trainer.loop.build import allocate
from trainer.models.families import build_model
from trainer.models.initial_weights import init_weights
from trainer.parallel.activation_checkpoint import checkpoint_activations
from trainer.parallel.compile import compile_blocks
from trainer.parallel.mesh import build_mesh
from trainer.parallel.parallelize import parallelize
from trainyard.spec.job import JobSpec, parse_job_spec
from trainyard.spec.layout import Layout
from trainyard.spec.rules import check_new_job

EXAMPLE = Path(__file__).resolve().parents[4] / "examples" / "own_model"
MODEL: dict[str, Any] = {
    "factory": "gpt:build",
    "code": "data:own_model",
    "arguments": {"width": 32, "depth": 2, "heads": 2, "dropout": 0.1},
    "block_classes": ["Block"],
}


def gpt(folder: Path, **training: Any) -> SmallJob:
    """Return a short job that trains the example's model."""
    made = SmallJob(folder)
    shutil.copytree(EXAMPLE, folder / "data" / "own_model", dirs_exist_ok=True)
    spec = {**made.spec, "model": MODEL, "training": {**made.spec["training"], **training}}
    return SmallJob(folder, spec)


def test_the_example_is_a_legal_job() -> None:
    spec = parse_job_spec(tomllib.loads((EXAMPLE / "job.toml").read_text()))
    check_new_job(spec)
    model = build_model(spec, {"data": str(EXAMPLE.parent)})
    assert sum(p.numel() for p in model.parameters()) > 200_000
    assert len(model.layers) == spec.model.n_layers


def test_it_goes_on_exactly_on_other_numbers_of_ranks(tmp_path: Path) -> None:
    job = gpt(tmp_path / "job", steps=12)
    job = job.changed(tmp_path / "job", checkpoint={"interval_steps": 4})
    whole = job.launch(1, Layout(dp_shard=2))
    assert whole.values("train/loss")[12] < whole.values("train/loss")[1] - 0.5, "it must learn"
    saved = {m.train_state.step: m for m in job.committed().values()}

    alone = job.launch(2, Layout(), resume=saved[4])
    replicas = job.launch(3, Layout(dp_replicate=2, dp_shard=2), resume=saved[8])
    for attempt, start in ((alone, 4), (replicas, 8)):
        steps = range(start + 1, 13)
        assert [attempt.digests[s] for s in steps] == [whole.digests[s] for s in steps]
        expected = whole.values("train/loss")[12]
        assert attempt.values("train/loss")[12] == pytest.approx(expected, rel=1e-5)

    # The same layout is bitwise the same.
    again = job.launch(4, Layout(dp_shard=2), resume=saved[8])
    assert again.values("train/loss")[12] == whole.values("train/loss")[12]


def _weights(spec: JobSpec, layout: Layout, roots: dict[str, str]) -> tuple[Any, set[str]]:
    model = build_model(spec, roots)
    parallelize(model, build_mesh(layout, "cpu"), spec=spec, layout=layout)
    model.to_empty(device="cpu")
    init_weights(model, 5)
    tensors = {
        name: tensor.full_tensor() if isinstance(tensor, DTensor) else tensor.clone()
        for name, tensor in [*model.named_parameters(), *model.named_buffers()]
    }
    sharded = {type(m).__name__ for m in model.modules() if isinstance(m, FSDPModule)}
    return {name: tensor.detach() for name, tensor in tensors.items()}, sharded


def test_only_weights_are_offloaded(tmp_path: Path) -> None:
    shutil.copytree(EXAMPLE, tmp_path / "own_model")
    spec = parse_job_spec({"model": MODEL, "training": {"seq_len": 32}})
    model = build_model(spec, {"data": str(tmp_path)})
    # `meta` stands for the GPU.
    allocate(model, weights="cpu", buffers="meta")
    assert {p.device.type for p in model.parameters()} == {"cpu"}
    assert {name: b.device.type for name, b in model.named_buffers()} == dict.fromkeys(
        ["net.positions", *(f"positions.{n}" for n in ("cos", "sin", "stream", "queries"))], "meta"
    )


OWN_INIT = """
    import torch
    from torch import nn

    class Table(nn.Module):
        def __init__(self, vocab_size):
            super().__init__()
            self.logits = nn.Embedding(vocab_size, vocab_size)
            self.register_buffer("offset", torch.linspace(0, 1, vocab_size))

        def forward(self, tokens):
            return self.logits(tokens) + self.offset

        def init_weights(self, seed):
            nn.init.uniform_(self.logits.weight, generator=torch.Generator().manual_seed(seed))

    def build(vocab_size, seq_len):
        return Table(vocab_size)
"""


@pytest.mark.parametrize("own_init", [False, True])
@pytest.mark.parametrize(
    "layout", [Layout(dp_shard=3), Layout(dp_replicate=2, dp_shard=2)], ids=str
)
def test_initial_weights_and_buffers_are_bit_equal_on_every_layout(
    layout: Layout, own_init: bool, tmp_path: Path
) -> None:
    model = MODEL
    if own_init:
        (tmp_path / "table.py").write_text(textwrap.dedent(OWN_INIT))
        model = {"factory": "table:build", "code": "data:."}
    else:
        shutil.copytree(EXAMPLE, tmp_path / "own_model")
    spec = parse_job_spec({"model": model, "training": {"seq_len": 32}})
    roots = {"data": str(tmp_path)}
    ((expected, _),) = run_ranks(1, _weights, spec, Layout(), roots)
    if own_init:
        drawn = torch.rand(320, 320, generator=torch.Generator().manual_seed(5))
        assert torch.equal(expected["net.logits.weight"], drawn)
        assert torch.equal(expected["net.offset"], torch.linspace(0, 1, 320))
    else:
        assert torch.equal(expected["net.positions"], torch.arange(32))
        assert torch.equal(expected["net.blocks.0.qkv.bias"], torch.zeros(96))
        assert torch.equal(expected["net.norm.weight"], torch.ones(32))
        assert expected["net.places.weight"].std().item() == pytest.approx(0.02, rel=0.1)
    for found, sharded in run_ranks(layout.world_size, _weights, spec, layout, roots):
        assert sharded == ({"FSDPOwnModel"} if own_init else {"FSDPOwnModel", "FSDPBlock"})
        assert found.keys() == expected.keys()
        assert all(torch.equal(found[name], expected[name]) for name in expected)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"factory": "gtp:build"}, r"'gtp:build' cannot be imported in .*No module named 'gtp'"),
        ({"factory": "gpt:make"}, r"'gpt:make' cannot be imported.*no attribute 'make'"),
        ({"arguments": {"width": 32}}, r"failed on \(vocab_size=320, seq_len=32, width=32\): Type"),
        ({"factory": "gpt:F.gelu"}, "should match pattern"),
        ({"factory": "builtins:dict"}, r"returned dict, but a torch\.nn\.Module is needed"),
        ({"block_classes": ["Blok"]}, "no Blok; legal: Block, Embedding, LayerNorm, Linear, Modul"),
    ],
)
def test_what_cannot_be_built_is_refused(
    change: dict[str, Any], message: str, tmp_path: Path
) -> None:
    shutil.copytree(EXAMPLE, tmp_path / "own_model")
    with pytest.raises((LaunchError, ValueError), match=message):
        build_model(
            parse_job_spec({"model": {**MODEL, **change}, "training": {"seq_len": 32}}),
            {"data": str(tmp_path)},
        )


@pytest.mark.parametrize(
    ("name", "made", "found"),
    [
        ("scale", "1.0", r"\[\] of torch\.float32"),
        ("phase", "[1j, 1j]", r"\[2\] of torch\.complex64"),
        ("table", "[1, 2]", r"\[2\] of torch\.int64"),
    ],
)
def test_a_parameter_that_no_ranks_can_divide_is_refused_on_one_rank_too(
    name: str, made: str, found: str, tmp_path: Path
) -> None:
    source = f"""
        import torch
        def build(vocab_size, seq_len):
            net = torch.nn.Sequential(torch.nn.Embedding(320, 320))
            given = torch.tensor({made}, device="cpu")
            net[0].{name} = torch.nn.Parameter(given, requires_grad=given.is_floating_point())
            return net
    """
    (tmp_path / f"odd_{name}.py").write_text(textwrap.dedent(source))
    spec = parse_job_spec({"model": {"factory": f"odd_{name}:build", "code": "data:."}})
    with pytest.raises(LaunchError, match=f"parameter 0.{name} is {found}; legal: real numbers"):
        build_model(spec, {"data": str(tmp_path)})


COUNTING = """
    import torch
    from torch import nn

    class Block(nn.Module):
        def __init__(self, change):
            super().__init__()
            self.change, self.linear = change, nn.Linear(320, 320)
            self.register_buffer("seen", torch.zeros(1))

        def forward(self, x):
            if self.change == "in place":
                self.seen.add_(1)
            elif self.change == "anew":
                self.seen = self.seen + 1
            return self.linear(x)

    def build(vocab_size, seq_len, change):
        return nn.Sequential(nn.Embedding(320, 320), Block(change))
"""


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")
@pytest.mark.parametrize(
    ("change", "compiled"),
    # The compiler itself refuses a new buffer.
    [("in place", False), ("anew", False), ("in place", True)],
)
@pytest.mark.parametrize("mode", ["full", "selective"])
def test_a_block_that_changes_a_buffer_is_not_run_again(
    mode: str, change: str, compiled: bool, tmp_path: Path
) -> None:
    (tmp_path / "counting.py").write_text(textwrap.dedent(COUNTING))

    def train(mode: str, change: str) -> None:
        code = {"factory": "counting:build", "code": "data:.", "arguments": {"change": change}}
        sections = {
            "model": {**code, "block_classes": ["Block"]},
            "activation_checkpoint": {"mode": mode},
            "compile": {"enabled": compiled, "backend": "aot_eager"},
        }
        spec = parse_job_spec(sections)
        model = build_model(spec, {"data": str(tmp_path)})
        blocks = list(model.layers.values())
        checkpoint_activations(blocks, spec.activation_checkpoint, own_randomness=True)
        compile_blocks(blocks, spec.compile, device_type="cpu", recipe="none")
        model.to_empty(device="cpu")
        init_weights(model, 5)
        tokens = torch.zeros(1, 4, dtype=torch.int64)
        model(tokens, tokens).backward()

    train("none", change)
    train(mode, "not at all")
    with pytest.raises(
        LaunchError, match=r"forward changes the buffer 1\.seen of one; legal: none"
    ):
        train(mode, change)


def test_a_module_that_returns_no_logits_is_refused(tmp_path: Path) -> None:
    source = (
        "import torch\ndef build(vocab_size, seq_len):\n    return torch.nn.Embedding(320, 8)\n"
    )
    (tmp_path / "eight.py").write_text(source)
    spec = parse_job_spec({"model": {"factory": "eight:build", "code": "data:."}})
    model = build_model(spec, {"data": str(tmp_path)})
    with pytest.raises(LaunchError, match=r"logits \[B, S, V\] = \[1, 4, 320\], got .*1, 4, 8"):
        model(torch.zeros(1, 4, dtype=torch.int64, device="meta"))


def test_layers_of_an_own_model_are_quantized_by_their_real_widths(tmp_path: Path) -> None:
    def quantized(
        name: str, tp: int = 1, *, exclude: tuple[str, ...] = (), width: int = 48
    ) -> Path:
        sections: dict[str, Any] = {
            "model": {**MODEL, "dim": 66, "plans": ["tensor"], "block_classes": ["Block"]}
            | {"arguments": {**MODEL["arguments"], "width": width}},
            "quantization": {"recipe": "float8_tensorwise", "exclude": list(exclude)},
            "training": {"seq_len": 64, "global_batch_size": 4, "micro_batch_size": 1},
            "parallelism": {"tp": tp},
            "resources": {"world_size": tp},
        }
        job = gpt(tmp_path / name).changed(tmp_path / name, **sections)
        check_new_job(parse_job_spec(job.spec))  # the planner's shape is ignored
        return job.prepare(1, Layout(tp=tp))

    check_run(quantized("fits"), roots={})
    with pytest.raises(LaunchError, match=r"net.blocks.0.qkv is 48 x 72 on each rank; legal: "):
        check_run(quantized("split", tp=2), roots={})
    with pytest.raises(LaunchError, match=r"net.blocks.0.qkv is 40 x 120 on each rank; legal: "):
        check_run(quantized("narrow", width=40), roots={})
    check_run(quantized("left out", width=40, exclude=("blocks", "head")), roots={})
    with pytest.raises(LaunchError, match=r"no linear layer has lm_head .* net.head"):
        check_run(quantized("unknown", exclude=("output", "lm_head")), roots={})


def test_matrices_of_an_own_model_are_kept_from_decay_by_names_that_there_are(
    tmp_path: Path,
) -> None:
    def naming(part: str) -> Path:
        job = gpt(tmp_path / part).changed(tmp_path / part, optimizer={"no_decay": [part]})
        return job.prepare(1, Layout())

    check_run(naming("head"), roots={})
    with pytest.raises(LaunchError, match=r"no matrix has wte in its name; legal: .* net\.head"):
        check_run(naming("wte"), roots={})
