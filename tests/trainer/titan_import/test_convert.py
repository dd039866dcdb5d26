"""Checkpoints of torchtitan become checkpoints from which a job continues, or are refused."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from tests.examples.test_programs import NO_TITAN, TITAN
from tests.library.adapters.titan_launch import titan_launch
from tests.trainer.runs import JOB, SmallJob
from tests.trainer.titan_import.titan_files import (
    SMALL,
    STEP,
    State,
    read,
    root_of,
    saved,
    spec_of,
    titan_name,
    titan_state,
)
from trainer.checkpoint.first_checkpoint import with_first_checkpoint
from trainer.checkpoint.reader.storage_reader import CheckedReader
from trainer.checkpoint.tensors import train_tensors
from trainer.errors import CheckpointError, LaunchError, MismatchError, RunError
from trainer.run import TrainerRun
from trainer.titan_import.convert import convert, main
from trainer.titan_import.titan_weights import our_names
from trainyard.base.ids import make_id
from trainyard.protocol.attempt import AttemptSpec
from trainyard.run.directory import RunDirectory
from trainyard.spec.job import parse_job_spec
from trainyard.spec.layout import Layout

pytestmark = [
    pytest.mark.filterwarnings("ignore:torch.distributed is disabled"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
]
TITAN_MODELS: dict[str, dict[str, Any]] = {
    "llama3": {
        "dim": 256,
        "n_layers": 6,
        "n_heads": 16,
        "n_kv_heads": 16,
        "ffn_dim": 768,
        "vocab_size": 2048,
        "rope_theta": 500_000.0,
        "rope_factor": 8.0,
    },
    "qwen3": {
        "dim": 256,
        "n_layers": 8,
        "n_heads": 16,
        "n_kv_heads": 8,
        "head_dim": 128,
        "ffn_dim": 3072,
        "vocab_size": 2048,
        "rope_theta": 1_000_000.0,
        "tied_embeddings": True,
    },
}
"""Shapes of torchtitan's debug models."""
Change = Callable[[State], object]


# ---- against torchtitan itself -------------------------------------------------------------------


@pytest.mark.timeout(900)
@pytest.mark.skipif(TITAN is None, reason=NO_TITAN)
@pytest.mark.parametrize("family", ["llama3", "qwen3"])
def test_the_next_steps_are_those_of_torchtitan(family: str, tmp_path: Path) -> None:
    assert TITAN is not None
    options = ("--training.steps", "3", "--checkpoint.interval", "3")
    (tmp_path / "titan").mkdir()
    with titan_launch(tmp_path / "titan") as titan:
        codes, log = titan.ranks(family, *options, ranks=1)
    assert codes == [0], log
    step = tmp_path / "titan" / "checkpoints" / "step-3"
    script = Path(__file__).parent / "titan_steps.py"
    ran = subprocess.run([TITAN, str(script), family, str(step)], capture_output=True, check=True)
    theirs = json.loads(ran.stdout.splitlines()[-1])

    spec = parse_job_spec(
        {
            "model": {"family": family, "size": "debug", **TITAN_MODELS[family]},
            "training": {"seq_len": 32, "global_batch_size": 12},
        }
    )
    root = root_of(tmp_path)
    manifest = convert(step, spec, to=root, name="torchtitan")
    assert (manifest.step, manifest.train_state.tokens) == (3, 3 * 12 * 32)
    model, optimizer = read(root, spec)
    tokens_BS = (torch.arange(66) * 31 % 2048).view(2, 33)
    ours = []
    for _ in range(3):
        logits_BSV: Tensor = model(tokens_BS[:, :-1])
        loss = F.cross_entropy(logits_BSV.flatten(0, 1), tokens_BS[:, 1:].flatten())
        ours.append(loss.item())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    assert ours[0] == pytest.approx(theirs[0], abs=1e-5)
    assert ours == pytest.approx(theirs, abs=1e-4), "the moments are those of torchtitan"


# ---- without torchtitan --------------------------------------------------------------------------


def test_a_job_continues_from_it_on_two_ranks(tmp_path: Path) -> None:
    job = SmallJob(tmp_path / "job").changed(
        tmp_path / "job",
        model={**SMALL, "dropout": 0.0},
        training={"steps": STEP + 2},
        checkpoint={"preflight": False, "start_from": f"moved/a1/step-{STEP}"},
    )
    job.storage.mkdir(exist_ok=True)
    spec = parse_job_spec(job.spec)
    step = saved(tmp_path, titan_state(spec))
    file = tmp_path / "job.json"
    file.write_text(json.dumps(job.spec))
    words = [str(step), "--spec", str(file), "--to", str(job.storage), "--name", "moved"]
    assert main([*words, "--tokens", "1234"]) == 0
    attempt = job.launch(1, Layout(dp_shard=2))
    assert list(attempt.lines) == [STEP + 1, STEP + 2]
    (resumed,) = [event for event in attempt.events if event.kind == "resumed"]
    assert resumed.data["checkpoint_id"] == f"moved.a1.step-{STEP}"
    assert resumed.data["parts"] == ["model", "optimizer", "counters"]
    last = job.committed()[f"{JOB}.a1.step-{STEP + 2}"]
    assert last.parent == f"moved.a1.step-{STEP}"
    assert last.train_state.tokens == 1234 + 2 * spec.tokens_per_step
    assert last.train_state.data.position == 2 * spec.training.global_batch_size
    index = CheckedReader(job.storage / job.resume_point(last).path)
    index.open(job.resume_point(last))
    count = {"optimizer.norm.weight.step": torch.zeros(())}
    index.read(count)
    assert count["optimizer.norm.weight.step"].item() == STEP + 2


@pytest.mark.parametrize("name", ["manifest.json", "COMMITTED"])
def test_a_first_checkpoint_is_not_read_through_a_link_to_elsewhere(
    tmp_path: Path, name: str
) -> None:
    start = {"start_from": f"moved/a1/step-{STEP}"}
    job = SmallJob(tmp_path / "job").changed(tmp_path / "job", model=SMALL, checkpoint=start)
    job.storage.mkdir(exist_ok=True)
    step = saved(tmp_path, titan_state(spec_of()))
    convert(step, parse_job_spec(job.spec), to=job.storage, name="moved")
    file = job.storage / "moved" / "a1" / f"step-{STEP}" / name
    file.rename(tmp_path / name)
    file.symlink_to(tmp_path / name)
    run = run_of(job, tmp_path)
    with pytest.raises(CheckpointError, match="leads through a symbolic link to a place outside"):
        with_first_checkpoint(run)


def test_a_renamed_folder_is_refused(tmp_path: Path) -> None:
    """The server counts the job's steps from the name of the folder."""
    start = {"start_from": f"moved/a1/step-{STEP + 1}"}
    job = SmallJob(tmp_path / "job").changed(tmp_path / "job", model=SMALL, checkpoint=start)
    job.storage.mkdir(exist_ok=True)
    step = saved(tmp_path, titan_state(spec_of()))
    convert(step, parse_job_spec(job.spec), to=job.storage, name="moved")
    folder = job.storage / "moved" / "a1" / f"step-{STEP}"
    folder.rename(folder.with_name(f"step-{STEP + 1}"))
    with pytest.raises(CheckpointError, match=f"its step is {STEP}; give the folder the name"):
        with_first_checkpoint(run_of(job, tmp_path))


def run_of(job: SmallJob, folder: Path) -> TrainerRun:
    """Return the run of a job's first attempt."""
    return TrainerRun(
        directory=RunDirectory(folder),
        submitted=parse_job_spec(job.spec),
        spec=parse_job_spec(job.spec),
        attempt=AttemptSpec(job_id=JOB, layout=Layout()),
        checkpoint_root=job.storage,
        cache_dir=folder,
    )


def fuse(state: State) -> None:
    """Fuse the moments of the projections as torchtitan's `FusedQKVLinear` holds them."""
    spec = spec_of()
    arch = spec.architecture
    queries = arch.n_heads // arch.n_kv_heads
    for layer in range(arch.n_layers):
        prefix = f"optimizer.state.layers.{layer}.attention.qkv_linear"
        for key in ("exp_avg", "exp_avg_sq"):
            parts = [state.pop(f"{prefix}.{each}.weight.{key}") for each in ("wq", "wk", "wv")]
            grouped = [
                part.view(arch.n_kv_heads, count, arch.head_dim, arch.dim)
                for part, count in zip(parts, (queries, 1, 1), strict=True)
            ]
            state[f"{prefix}.wqkv.weight.{key}"] = torch.cat(grouped, dim=1).flatten(0, 2)
        counts = [state.pop(f"{prefix}.{each}.weight.step") for each in ("wq", "wk", "wv")]
        state[f"{prefix}.wqkv.weight.step"] = counts[0]


def as_before(state: State) -> None:
    """Rename everything as torchtitan 0.2 did."""
    for name in list(state):
        state[name.replace(".qkv_linear", "").replace("lm_head", "output")] = state.pop(name)


def test_fused_moments_and_older_names_give_the_same_state(tmp_path: Path) -> None:
    spec = spec_of()
    found = []
    for number, change in enumerate((lambda _: None, fuse, as_before)):
        state, root = titan_state(spec), tmp_path / f"root-{number}"
        root.mkdir()
        change(state)
        convert(saved(tmp_path / str(number), state), spec, to=root, name="torchtitan")
        assert [path.name for path in root.iterdir()] == ["torchtitan"], "no scratch is left"
        found.append(train_tensors(*read(root, spec)))
    plain, *others = found
    assert plain["optimizer.layers.0.attention.wk.weight.exp_avg"].std() > 0
    for other in others:
        assert other.keys() == plain.keys()
        assert all(torch.equal(other[name], plain[name]) for name in plain)


def test_rows_of_queries_change_their_order_for_llama_only(tmp_path: Path) -> None:
    for family in ("llama3", "qwen3"):
        spec = spec_of(family=family, tied_embeddings=False)
        state, root = titan_state(spec), tmp_path / family
        root.mkdir()
        convert(saved(tmp_path / f"{family}-titan", state), spec, to=root, name="torchtitan")
        tensors = train_tensors(*read(root, spec))
        name = "layers.1.attention.wq.weight"
        head = spec.architecture.head_dim
        rows = [*range(0, head, 2), *range(1, head, 2)] if family == "llama3" else [*range(head)]
        theirs = state[titan_name(name)][:head][rows]
        assert torch.equal(tensors[f"model.{name}"][:head], theirs)
        moment = state[f"optimizer.state.{titan_name(name)}.exp_avg"][:head][rows]
        assert torch.equal(tensors[f"optimizer.{name}.exp_avg"][:head], moment)


def tie(state: State) -> None:
    """Let the head be the embedding, as a tied model of torchtitan saves it."""
    for name in [name for name in state if name.startswith("optimizer.") and "lm_head" in name]:
        del state[name]
    state["lm_head.weight"] = state["tok_embeddings.weight"].clone()


def test_a_tied_head_is_the_embedding_or_is_refused(tmp_path: Path) -> None:
    spec, state = spec_of(tied_embeddings=True), titan_state(spec_of())
    tie(state)
    root = root_of(tmp_path)
    convert(saved(tmp_path / "tied", state), spec, to=root, name="torchtitan")
    assert "model.output.weight" not in train_tensors(*read(root, spec))
    state["lm_head.weight"][0, 0] += 1
    step = saved(tmp_path / "trained", state)
    with pytest.raises(MismatchError, match=r"differs from the embedding, .*legal: false"):
        convert(step, spec, to=root, name="other")


def rename(old: str, new: str) -> Change:
    return lambda state: state.update({new: state.pop(old)})


def put(name: str, value: Any) -> Change:
    return lambda state: state.update({name: value})


def without(part: str) -> Change:
    def change(state: State) -> None:
        for name in [name for name in state if part in name]:
            del state[name]

    return change


WQ = "layers.0.attention.qkv_linear.wq.weight"
REFUSED: dict[str, tuple[Change, str]] = {
    "experts": (
        rename("layers.0.feed_forward.w1.weight", "layers.0.moe.experts.w1"),
        r"unexpected in the checkpoint:\n    layers.0.moe.experts.w1: ",
    ),
    "an adapter": (
        put("layers.0.attention.wo.lora_a.weight", torch.ones(2, 2)),
        r"unexpected in the checkpoint:\n    layers.0.attention.wo.lora_a.weight: ",
    ),
    "another optimizer": (
        rename(f"optimizer.state.{WQ}.exp_avg", f"optimizer.state.{WQ}.momentum_buffer"),
        r"(?s)missing in the checkpoint:\n    optimizer.layers.0.attention.wq.weight.exp_avg"
        r".*unexpected in the checkpoint:\n    optimizer.state.*momentum_buffer",
    ),
    "only weights": (
        without("optimizer."),
        r"0 unexpected.*\n  missing in the checkpoint:\n    optimizer.layers.0",
    ),
    "no counters": (without("train_state"), "torchtitan saved only a model"),
    "two names of one weight": (
        put("output.weight", torch.zeros(320, 64)),
        r"(lm_head|output).weight and (lm_head|output).weight are both model.output.weight",
    ),
    "another width": (
        put("norm.weight", torch.ones(65)),
        r"changed:\n    model.norm.weight is float32 \(65,\) there and float32 \(64,\) here",
    ),
    "whole numbers": (
        put("norm.weight", torch.ones(64, dtype=torch.int32)),
        "model.norm.weight is int32",
    ),
    "a negative step": (put("train_state", {"step": -1}), "is '-1', not a whole number from 0"),
    "a step that is a text": (put("train_state", {"step": "x"}), "is 'x', not a whole number"),
    "a count beyond the step": (
        put(f"optimizer.state.{WQ}.step", torch.tensor(8.0)),
        "is 8, but the checkpoint is of step 7",
    ),
    "a count that is no number": (
        put(f"optimizer.state.{WQ}.step", torch.tensor(float("nan"))),
        "is nan, but the checkpoint is of step 7",
    ),
    "a negative count": (
        put(f"optimizer.state.{WQ}.step", torch.tensor(-1.0)),
        "is -1, but the checkpoint is of step 7",
    ),
    "a step beyond the last one": (
        put("train_state", {"step": 10**9 + 1}),
        "train_state.step is 1000000001; legal: at most 1,000,000,000",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_does_not_map_is_refused_by_name(name: str, tmp_path: Path) -> None:
    change, message = REFUSED[name]
    spec, root = spec_of(), root_of(tmp_path)
    state = titan_state(spec)
    change(state)
    with pytest.raises(RunError, match=message):
        convert(saved(tmp_path, state), spec, to=root, name="torchtitan")
    assert list(root.iterdir()) == []


def test_models_without_these_names_are_refused(tmp_path: Path) -> None:
    step = saved(tmp_path, titan_state(spec_of()))
    own = parse_job_spec({"model": {"hugging_face": "data:model"}})
    with pytest.raises(LaunchError, match="the spec has data:model: only models of the families"):
        convert(step, own, to=tmp_path, name="torchtitan")
    with pytest.raises(LaunchError, match=r"--name '\.\./up': letters"):
        convert(step, spec_of(), to=tmp_path, name="../up")


def test_no_folder_of_a_job_is_written(tmp_path: Path) -> None:
    spec, root = spec_of(), root_of(tmp_path)
    step = saved(tmp_path, titan_state(spec))
    name = make_id(milliseconds=1, entropy=bytes(10))
    with pytest.raises(LaunchError, match="is the id of a job; legal: any other name"):
        convert(step, spec, to=root, name=name)
    job = SmallJob(tmp_path / "job").changed(tmp_path / "job", training={"steps": 5})
    job.launch(1, Layout())
    with pytest.raises(LaunchError, match="is a folder with other checkpoints"):
        convert(step, spec, to=job.storage, name=JOB)
    with pytest.raises(LaunchError, match="--tokens -1: legal: 0 or more"):
        convert(step, spec, to=root, name="moved", tokens=-1)


def test_names_of_other_models_map_to_nothing() -> None:
    others = ("layers.0.moe.router.gate.weight", "layers.x.attention.wq.weight", "freqs_cis", "")
    assert [our_names(name) for name in others] == [()] * 4
