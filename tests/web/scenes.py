"""Realistic jobs for tests of pages: long histories, failures, waits and starts."""

from __future__ import annotations

import math
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from server.core.context import Context
from server.core.subject import Actor
from server.core.visibility.scope import SYSTEM_SCOPE
from server.jobs.jobs.fork import fork
from tests.web.actors import Run, Stage
from tests.web.caretakers import Caretaker
from tests.web.supply import Supply, play_supply
from trainyard.protocol.rest.checkpoints import ForkRequest
from trainyard.run.checkpoint_faults import CheckpointFault
from trainyard.run.directory import Phase
from trainyard.run.failures import Failure, FailureReason

TRACEBACK = """Traceback (most recent call last):
  File "/usr/lib/python3.13/runpy.py", line 198, in _run_module_as_main
    return _run_code(code, main_globals, None, "__main__", mod_spec)
  File "/srv/trainyard/trainer/__main__.py", line 58, in main
    run(directory)
  File "/srv/trainyard/trainer/loop.py", line 231, in _step
    loss.backward()
  File "/srv/venv/site-packages/torch/autograd/graph.py", line 841, in _engine_run_backward
    return Variable._execution_engine.run_backward(t_outputs, *args, **kwargs)
torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 3 has a total capacity \
of 139.81 GiB of which 1.12 GiB is free. Including non-PyTorch memory, this process has 138.68 GiB \
memory in use."""
LONG_NAME = "llama3-8b-fineweb-edu-350bt-seq8192-gbs1024-wsd-lr3e-4-seed1337-ablation-no-qk-n"
BIG = {
    "model": {"size": "8B"},
    "training": {
        "steps": 9000,
        "seq_len": 4096,
        "global_batch_size": 64,
        "micro_batch_size": 1,
        "param_dtype": "bfloat16",
    },
    "checkpoint": {"interval_steps": 200, "keep_latest_k": 0},
    "optimizer": {"lr": 3e-4},
    "lr_schedule": {"warmup_steps": 500},
    "tags": ["pretrain", "8b", "fineweb"],
    "env": {"NCCL_DEBUG": "INFO"},
}
LOG_LINES = 200_000


@dataclass(frozen=True)
class Scenes:
    """Ids of the jobs."""

    tale: str
    """Ten attempts, a branch, NaN, 200,000 lines of output; runs."""
    running: Run
    """Its newest attempt, which may go on."""
    retrying: str
    """Failed, and waits to be tried again."""
    oom: str
    """Failed with `out_of_memory`."""
    waiting: str
    """Needs more slots than are free."""
    fresh: str
    """Placed; nothing came back yet."""
    done: str
    """Succeeded."""
    stopped: str
    """Stopped, ready to go on."""
    forked: str
    """Forked from the stopped one at half the rate; its loss became NaN."""
    supply: Supply
    """What was asked of sources, among others for the job that waits."""


def play(context: Context) -> Scenes:
    """Store all scenes, as if from the last hours."""
    stage = Stage.open(context, at=datetime.now(UTC) - timedelta(hours=3, minutes=50))
    for name in ("gpu-01", "gpu-02", "gpu-03"):
        stage.join(name, slots=4, device_name="NVIDIA H200", gib=140)
    done = _done(stage)
    stopped = _stopped(stage)
    forked = _forked(stage, stopped)
    oom = _oom(stage)
    tale, running = _tale(stage)
    fresh = stage.submit(name="debug-fresh", resources={"world_size": 2})
    stage.start(fresh)
    retrying = _retrying(stage)
    waiting = stage.submit(
        name="llama-70b",
        model={"size": "70B"},
        training={"global_batch_size": 48},
        resources={"world_size": 12},
    )
    stage.place()
    _look_after(stage, tale)
    return Scenes(
        tale=tale,
        running=running,
        retrying=retrying,
        oom=oom,
        waiting=waiting,
        fresh=fresh,
        done=done,
        stopped=stopped,
        forked=forked,
        supply=play_supply(context, wanted_by="llama-70b"),
    )


def _look_after(stage: Stage, tale: str) -> None:
    """Verify, damage, pin and delete checkpoints of the long job."""
    care = Caretaker(stage, tale)
    care.verify("a9.step-5200")
    care.export("a9.step-5200")
    care.pin("a9.step-5200")
    stage.clock.advance(60)
    care.verify("a9.step-4800", fault=CheckpointFault.FILE_DAMAGED)
    care.verify("a9.step-5000")
    care.auto_export("a9.step-5000")
    care.auto_export("a9.step-4400", fails=True)
    care.begin("a10.step-5600", share=0.455)
    care.begin("a10.step-5400", share=0.0)
    care.delete("a9.step-4600")


def _done(stage: Stage) -> str:
    job = stage.submit(name="smoke", training={"steps": 60}, resources={"world_size": 2})
    run = stage.start(job)
    run.train(60, seconds_per_step=0.4)
    run.save(kind="final")
    run.end("succeeded")
    return job


def _stopped(stage: Stage) -> str:
    job = stage.submit(
        name="debug",
        training={"steps": 400, "global_batch_size": 16, "micro_batch_size": 4},
        checkpoint={"keep_latest_k": 0},
        resources={"world_size": 2},
    )
    run = stage.start(job)
    run.train(180, seconds_per_step=0.5, save_every=50)
    run.write(0, [f"step {n}/400  loss {2 + 3 / n:.4f}" for n in range(1, 181)])
    _leave(run)
    return job


def _forked(stage: Stage, origin: str) -> str:
    request = ForkRequest(changes={"optimizer": {"lr": 1.5e-4}}, name="debug-half-rate")
    _, job = fork(
        stage.context, f"{origin}.a1.step-150", request, actor=Actor("ada", scope=SYSTEM_SCOPE)
    )
    run = stage.start(job)
    run.save(150, kind="preflight")
    run.train(160)
    failure = Failure(
        reason=FailureReason.NON_FINITE_LOSS,
        message="The loss is nan at step 160.",
        rank=0,
        step=160,
        metric="train/loss",
    )
    run.end("failed", failure)
    return job


def _oom(stage: Stage) -> str:
    sections = BIG | {"training": {**BIG["training"], "micro_batch_size": 8}}  # type: ignore[dict-item]
    job = stage.submit(name="llama-8b-mbs8", resources={"world_size": 4}, **sections)
    run = stage.start(job)
    run.write(0, [f"[rank0] layer {n} built" for n in range(32)])
    run.write(3, ["[rank3] begins", *TRACEBACK.splitlines()])
    run.end(
        "failed",
        Failure(
            reason=FailureReason.OUT_OF_MEMORY,
            message="CUDA out of memory. Tried to allocate 2.00 GiB on GPU 3 in the backward pass.",
            rank=3,
            step=1,
            exit_code=1,
            traceback=TRACEBACK,
        ),
    )
    return job


def _retrying(stage: Stage) -> str:
    job = stage.submit(name="flaky", training={"steps": 400}, resources={"world_size": 2})
    run = stage.start(job)
    run.train(120, seconds_per_step=0.1, save_every=50)
    run.end(
        "failed",
        Failure(
            reason=FailureReason.TRAINER_ERROR,
            message="Rank 1 was ended by SIGKILL.",
            rank=1,
            signal="SIGKILL",
            step=120,
        ),
    )
    return job


def _tale(stage: Stage) -> tuple[str, Run]:
    job = stage.submit(
        name=LONG_NAME,
        description="Does QK normalisation matter at 8B?\nControl arm, no QK norm.",
        resources={"world_size": 4},
        **BIG,
    )
    run = stage.start(job)
    run.save(kind="preflight")
    run.train(900, save_every=200)
    run.end("failed", _lost())
    run = stage.start(job)  # retried
    run.train(1700, save_every=200)
    _leave(run)
    run = stage.resume(job, world_size=8)
    nan = {
        step: {"train/loss": math.nan, "train/grad_norm": math.inf} for step in range(2481, 2500)
    }
    run.train(2500, seconds_per_step=1.0, save_every=200, strange={2210: {"train/loss": 9.4}} | nan)
    run.write(0, _output(LOG_LINES))
    run.write(1, _output(400))
    run.end(
        "failed",
        Failure(
            reason=FailureReason.NON_FINITE_LOSS,
            message="train/loss is NaN at step 2481 and stayed so for 19 steps.",
            metric="train/loss",
            rank=0,
            step=2500,
        ),
    )
    run = stage.resume(job, checkpoint_id=f"{job}.a3.step-2000", world_size=3)
    run.train(2600, seconds_per_step=2.4, save_every=200)
    _leave(run)
    for world_size, until in ((1, 2700), (2, 3400), (4, 4100), (6, 4300), (8, 5200)):
        run = stage.resume(job, world_size=world_size)
        run.train(until, seconds_per_step=1.5, save_every=200)
        _leave(run)
    run = stage.resume(job, world_size=4, overrides={"parallelism": {"dp_replicate": 2}})
    run.write(0, _output(3000))
    run.train(5730, save_every=200)
    _compare_ranks(run)
    run.report(Phase.TRAINING)
    return job, run


def _compare_ranks(run: Run) -> None:
    """Report how four ranks spent a step: rank 2 waits for data, and the others for it."""
    own = {0: (1.0, 0.02), 1: (0.98, 0.02), 2: (1.0, 0.55), 3: (1.02, 0.03)}
    spans = [
        {
            "first_rank": rank,
            "last_rank": rank,
            "rank": rank,
            "compute_seconds": compute,
            "data_seconds": data,
            "wait_seconds": 1.6 - compute - data,
        }
        for rank, (compute, data) in own.items()
    ]
    run.tell("rank_times", {"ranks": spans})


def _leave(run: Run) -> None:
    run.ask_to_stop()
    run.tell("stop_agreed", {})
    run.save(kind="stop")
    run.end("stopped")


def _lost() -> Failure:
    return Failure(
        reason=FailureReason.NODE_LOST, message="gpu-01 was silent for 600 s.", node="gpu-01"
    )


def _output(count: int) -> list[str]:
    lines = []
    for n in range(count):
        if n == count * 3 // 4:
            lines += ["\x1b[31mERROR\x1b[0m RuntimeError: NCCL communicator was aborted on rank 0"]
        elif n % 997 == 5:
            lines += [f"W{n:06} dataloader fell behind: " + "queue depth 0, " * 40]
        else:
            clock = f"12:{n // 60 % 60:02}:{n % 60:02}"
            lines += [f"2026-11-20 {clock} INFO step {n} loss {2 + 1 / (n + 1):.4f}"]
    return lines
