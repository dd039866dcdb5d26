"""Plans of custom models: the example on every layout against one rank; misfits refused."""

from __future__ import annotations

import shutil
import textwrap
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
import torch

from tests.trainer.numerics.measure import LOSS_TOLERANCE, NORM_TOLERANCE, Course
from tests.trainer.ranks import RankError, run_ranks
from tests.trainer.runs import Attempt, Meddling, SmallJob, train_rank
from trainer.check import check_run
from trainer.errors import LaunchError
from trainer.models.families import build_model
from trainer.models.initial_weights import init_weights
from trainer.parallel.compile import compile_blocks
from trainyard.spec.job import parse_job_spec
from trainyard.spec.layout import Layout
from trainyard.spec.sections.parallelism import CompileSection

EXAMPLE = Path(__file__).resolve().parents[4] / "examples" / "own_model"
STEPS = 10
SPEC: dict[str, Any] = {
    "name": "own",
    "model": {
        "factory": "gpt:build",
        "code": "data:own_model",
        "arguments": {"width": 32, "depth": 4, "heads": 4, "dropout": 0.1},
        "block_classes": ["Block"],
        "plans": ["tensor", "pipeline"],
        "vocab_size": 320,
        "dim": 32,
        "n_layers": 4,
        "n_heads": 4,
        "n_kv_heads": 4,
        "ffn_dim": 128,
    },
    "data": {"source": "text", "path": "data:text.txt"},
    "training": {"steps": STEPS, "seq_len": 64, "global_batch_size": 16, "micro_batch_size": 4},
    "optimizer": {"lr": 3e-3},
    "lr_schedule": {"warmup_steps": 2},
    "checkpoint": {"interval_steps": 0, "preflight": False},
}
FULL = {"activation_checkpoint": {"mode": "full"}}
SELECTIVE = {"activation_checkpoint": {"mode": "selective"}}
COMPILED = {"compile": {"enabled": True, "backend": "aot_eager"}}
BFLOAT16 = {"training": {"param_dtype": "bfloat16"}}
WHOLE_STREAM = {"parallelism": {"sequence_parallel": False, "loss_parallel": False}}
ZERO_BUBBLE = {"parallelism": {"pp_schedule": "ZBVZeroBubble"}}
INTERLEAVED = {"parallelism": {"pp_schedule": "Interleaved1F1B"}}
VALIDATED: dict[str, dict[str, Any]] = {
    "data": {"validation_fraction": 0.1},
    "validation": {"interval_steps": 5},
}


def own_job(folder: Path, **sections: dict[str, Any]) -> SmallJob:
    """Return a short job that trains the example's model."""
    job = SmallJob(folder, SPEC).changed(folder, **sections)
    shutil.copytree(EXAMPLE, folder / "data" / "own_model")
    return job


def course(layout: Layout, sections: dict[str, Any]) -> Course:
    """Train the job on a layout like a launch, and return its measurements."""
    with TemporaryDirectory() as folder:
        attempt = own_job(Path(folder), **sections).launch(1, layout)
        return Course(
            *(
                tuple(attempt.values(name)[step] for step in range(1, STEPS + 1))
                for name in ("train/loss", "train/grad_norm")
            )
        )


@cache
def on_one_rank() -> Course:
    """Return the measurements of one rank; it learns, so that equal losses are significant."""
    expected = course(Layout(), {})
    assert expected.losses[-1] < expected.losses[0] - 0.1
    return expected


def row(layout: Layout, *sections: dict[str, Any], slow: bool = False) -> Any:
    merged = {name: section for given in sections for name, section in given.items()}
    return pytest.param(layout, merged, id=f"{layout} {merged}", marks=[pytest.mark.slow] * slow)


@pytest.mark.parametrize(
    ("layout", "sections"),
    [
        row(Layout(tp=2)),
        row(Layout(tp=2), WHOLE_STREAM, slow=True),
        row(Layout(tp=2, dp_shard=2), slow=True),
        row(Layout(tp=4), slow=True),
        row(Layout(pp=2)),
        row(Layout(pp=2, dp_shard=2)),
        row(Layout(pp=2), INTERLEAVED, slow=True),
        row(Layout(pp=2), ZERO_BUBBLE, slow=True),
        row(Layout(pp=2, tp=2), slow=True),
        row(Layout(dp_shard=2), FULL),
        row(Layout(tp=2), SELECTIVE, slow=True),
        row(Layout(pp=2, dp_shard=2), FULL, slow=True),
        row(Layout(dp_shard=2), COMPILED, slow=True),
        row(Layout(tp=2), COMPILED, slow=True),
        row(Layout(pp=2), COMPILED, slow=True),
    ],
)
def test_a_layout_computes_what_one_rank_computes(layout: Layout, sections: dict[str, Any]) -> None:
    found, expected = course(layout, sections), on_one_rank()
    assert found.losses == pytest.approx(expected.losses, rel=LOSS_TOLERANCE)
    assert found.norms == pytest.approx(expected.norms, rel=NORM_TOLERANCE)


@pytest.mark.parametrize(
    ("layout", "sections"),
    [
        row(Layout(dp_shard=2), BFLOAT16, slow=True),
        row(Layout(tp=2), BFLOAT16, slow=True),
        row(Layout(pp=2), BFLOAT16),
        row(Layout(pp=2, tp=2), BFLOAT16, slow=True),
    ],
)
def test_bfloat16_trains_close_to_float32(layout: Layout, sections: dict[str, Any]) -> None:
    found = course(layout, sections)
    assert found.losses == pytest.approx(on_one_rank().losses, rel=0.01)


def test_a_job_goes_through_every_plan(tmp_path: Path) -> None:
    sections = {**VALIDATED, "training": {"steps": 12}}
    whole = own_job(tmp_path / "whole", **sections).launch(1, Layout())
    job, resume = own_job(tmp_path / "chain", **sections), None
    chain = [Layout(dp_shard=2), Layout(tp=2), Layout(pp=2), Layout()]
    attempts: list[Attempt] = []
    for number, layout in enumerate(chain, start=1):
        attempt = job.launch(number, layout, Meddling(stop_after=3 * number - 1), resume=resume)
        assert attempt.outcome.checkpoint_id is not None
        resume = job.committed()[attempt.outcome.checkpoint_id]
        assert resume.train_state.step == 3 * number
        attempts.append(attempt)
    assert attempts[-1].outcome.outcome == "succeeded"

    def joined(name: str) -> dict[int, float]:
        return {step: value for a in attempts for step, value in a.values(name).items()}

    assert {s: digest for a in attempts for s, digest in a.digests.items()} == whole.digests
    assert joined("train/loss") == pytest.approx(whole.values("train/loss"), rel=LOSS_TOLERANCE)
    held_out = joined("validation/loss")  # dropout is off, and the pipeline runs forward only
    expected = {step: whole.values("validation/loss")[step] for step in (5, 10)}
    assert {step: held_out[step] for step in expected} == pytest.approx(expected, rel=1e-4)


def _compiled_once(root: str) -> None:
    spec = parse_job_spec({**SPEC, "parallelism": {}})
    model = build_model(spec, {"data": root})
    model.to_empty(device="cpu")
    init_weights(model, 5)
    compile_blocks(model.layers.values(), CompileSection(enabled=True, backend="aot_eager"))
    tokens_BS, keys_B = torch.randint(320, (2, 64)), torch.arange(2)
    with torch._dynamo.config.patch(recompile_limit=1):  # a second program would raise
        model(tokens_BS, tokens_BS, keys_B=keys_B).backward()


def test_one_compiled_program_serves_all_blocks(tmp_path: Path) -> None:
    shutil.copytree(EXAMPLE, tmp_path / "own_model")
    run_ranks(1, _compiled_once, str(tmp_path))


def asking(folder: Path, source: str, layout: Layout, **sections: dict[str, Any]) -> Path:
    """Return the run directory of an attempt with a model from this source."""
    module = f"case_{folder.name}"
    (folder / "data").mkdir()
    (folder / "data" / f"{module}.py").write_text(PREAMBLE + textwrap.dedent(source))
    model = {"factory": f"{module}:build", "code": "data:.", "arguments": {}, "n_layers": 2}
    given = {"model": model, **sections}
    given["model"] = {**model, **sections.get("model", {})}
    return SmallJob(folder, SPEC).changed(folder, **given).prepare(1, layout)


PREAMBLE = """
from torch import nn
from torch.distributed.tensor import Replicate, Shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel

class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.down = nn.Linear(32, 128), nn.Linear(128, 32)

    def forward(self, x):
        return x + self.down(self.up(x))

class Plain(nn.Module):
    def __init__(self):
        super().__init__()
        self.tokens = nn.Embedding(320, 32)
        self.blocks = nn.ModuleList([Block(), Block()])
        self.head = nn.Linear(32, 320, bias=False)

    def forward(self, x):
        x = self.tokens(x)
        for block in self.blocks:
            x = block(x)
        return self.head(x)

class Cut(Plain):
    def forward(self, x):
        x = x if self.tokens is None else self.tokens(x)
        for block in self.blocks:
            x = x if block is None else block(x)
        return x if self.head is None else self.head(x)

def build(vocab_size, seq_len):
    return Model()
"""
ENDS = '[["tokens"], ["blocks.0"], ["blocks.1"], ["head"]]'
TENSOR = "def tensor_parallel_plan(self, *, tp, sequence_parallel, loss_parallel):"
PIECES = "def pipeline_parallel_plan(self):"
TP, PP = Layout(tp=2), Layout(pp=2)


def model(base: str, *methods: str) -> str:
    """Return the source of a model with some methods, each a signature and an expression."""
    pairs = zip(methods[::2], methods[1::2], strict=True)
    lines = [f"    {head}\n        return {body}\n" for head, body in pairs]
    return f"class Model({base}):\n    pass\n" + "".join(lines)


MISFITS = {
    "no_tensor_plan": (model("Plain"), TP, "plans has 'tensor', but Model of .* no method tensor_"),
    "no_pipeline_plan": (model("Cut"), PP, "plans has 'pipeline', but .* method pipeline_parall"),
    "refusing": (model("Plain", TENSOR, "1 // 0"), TP, r"tensor_parallel_plan\(tp=2, .*ZeroDivi"),
    "no_styles": (model("Plain", TENSOR, '{"head": 1}'), TP, "must return torch's ParallelStyles"),
    "no_such_module": (
        model("Plain", TENSOR, '{"blocks.*.gate": ColwiseParallel()}'),
        TP,
        r"names 'blocks.\*.gate', but the model has no such module",
    ),
    "left_out": (
        model("Plain", TENSOR, '{"blocks.*.up": ColwiseParallel()}'),
        TP,
        r"leaves out tokens.weight, blocks.0.down.weight, .*legal: a style .*sequence_parallel=fal",
    ),
    "count": (
        model("Cut", PIECES, '[["tokens"], ["blocks"], ["head"]]'),
        PP,
        "returns 3 pieces, but model.n_layers=2 makes 4",
    ),
    "unknown": (model("Cut", PIECES, ENDS.replace("head", "out")), PP, "the model has no out"),
    "twice": (
        model("Cut", PIECES, ENDS.replace('"head"', '"blocks", "head"')),
        PP,
        "blocks.0, blocks.1 is named twice, by itself or within blocks",
    ),
    "no_place": (
        model("Cut", PIECES, ENDS.replace('"tokens"', "")),
        PP,
        "no piece has the module of tokens.weight",
    ),
    "no_list": (model("Cut", PIECES, '"blocks"'), PP, "must return a list of pieces"),
    "blind": (
        model("Plain", PIECES, ENDS),
        PP,
        "stage 0 of 2, where all but blocks.0, tokens is None, does not run.*'NoneType' object is",
    ),
}


@pytest.mark.parametrize("case", MISFITS)
def test_a_plan_that_does_not_fit_is_refused_before_ranks_start(case: str, tmp_path: Path) -> None:
    source, layout, message = MISFITS[case]
    folder = tmp_path / case
    folder.mkdir()
    with pytest.raises(LaunchError, match=message):
        check_run(asking(folder, source, layout), roots={})


def test_a_stream_of_another_width_or_type_is_refused(tmp_path: Path) -> None:
    source = model("Cut", PIECES, ENDS)
    for name, section, message in (
        ("wide", {"model": {"dim": 64}}, r"= \[1, 64, 64\] \(D is model.dim\).*got \[1, 64, 32\]"),
        ("precise", {"training": {"param_dtype": "bfloat16"}}, "torch.bfloat16, got .*float32"),
    ):
        folder = tmp_path / name
        folder.mkdir()
        body = "x.float() if x.ndim == 3 else x"
        typed = (
            source
            + f"    def forward(self, x):\n        x = super().forward(x)\n        return {body}\n"
        )
        with pytest.raises(LaunchError, match=f"stage 0 of 2: .*{message}"):
            check_run(asking(folder, typed, PP, **section), roots={})


def test_weights_of_two_stages_are_refused(tmp_path: Path) -> None:
    source = """
        class Model(Cut):
            def __init__(self):
                super().__init__()
                self.head.weight = self.tokens.weight

            def pipeline_parallel_plan(self):
                return PIECES
    """.replace("PIECES", ENDS)
    with pytest.raises(LaunchError, match=r"tokens and head share the weight head.weight, .*pp=1"):
        check_run(asking(tmp_path, source, PP), roots={})


def test_what_a_pipeline_cuts_apart_has_no_style(tmp_path: Path) -> None:
    plan = '{"blocks": RowwiseParallel(), "*": RowwiseParallel(), "blocks.*.*": ColwiseParallel()}'
    source = model("Cut", PIECES, ENDS, TENSOR, plan)
    with pytest.raises(LaunchError, match="names 'blocks', which the pipeline plan cuts apart"):
        check_run(asking(tmp_path, source, Layout(pp=2, tp=2)), roots={})


WHOLE = '{"head": ColwiseParallel(output_layouts=Replicate()), "blocks.*.up": ColwiseParallel(), '
WHOLE += '"blocks.*.down": RowwiseParallel()}'


@pytest.mark.parametrize(
    ("change", "plan", "message"),
    [
        ({}, WHOLE, "loss_parallel=true, but forward .* split along the vocabulary: whole ones"),
        (
            {"loss_parallel": False},
            WHOLE.replace("output_layouts=Replicate()", "use_local_output=False"),
            "loss_parallel=false, but forward of the own model returned split logits",
        ),
        (
            {},
            '{"blocks.0.down": RowwiseParallel(), "odd": ColwiseParallel()}',
            r"tp=2 does not divide dimension 0 of odd.weight \[5, 32\]",
        ),
    ],
)
def test_what_only_shows_on_ranks_is_refused_by_all(
    change: dict[str, Any], plan: str, message: str, tmp_path: Path
) -> None:
    source = model(
        "Plain",
        "def __init__(self):",
        "[super().__init__(), setattr(self, 'odd', nn.Linear(32, 5))][2:] or None",
        TENSOR,
        plan,
    )
    axes = {"sequence_parallel": False, **change}
    run = asking(tmp_path, source, TP, parallelism=axes)
    check_run(run, roots={})
    with pytest.raises(RankError, match=message):
        run_ranks(2, train_rank, str(run), Meddling(), initialize=False)
    assert Attempt(run).error.reason == "launch_error"


def test_a_changed_buffer_is_refused_where_stages_have_replicas(tmp_path: Path) -> None:
    source = f"""
        import torch

        class Model(Cut):
            def __init__(self):
                super().__init__()
                self.register_buffer("seen", torch.zeros(()))

            def forward(self, x):
                self.seen += 1
                return super().forward(x)

            {PIECES}
                return {ENDS}
        """
    run = asking(tmp_path, source, Layout(pp=2, dp_shard=2))
    with pytest.raises(RankError, match=r"parallelism\.pp=2 on 2 data-parallel ranks, but forward"):
        run_ranks(4, train_rank, str(run), Meddling(), initialize=False)
    assert "changes the buffer seen; legal: pp=1" in Attempt(run).error.message
