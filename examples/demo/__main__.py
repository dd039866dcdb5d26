"""`make demo`: train on 2 slots, stop, resume on 4 and then 3; compare with an unbroken run.

It uses no stored results: it starts the control plane, submits two jobs, and compares their
metrics. It exits with 1 when a single sequence differs.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from embedded.folders import Folders
from embedded.record import read_record
from trainyard.client.errors import TrainyardError
from trainyard.client.sdk import Client
from trainyard.client.stream import Resync
from trainyard.protocol.rest.event_data import MetricsStored
from trainyard.protocol.rest.jobs import JobView
from trainyard.protocol.states import JobState
from trainyard.prove.course import Course, course, differing_steps
from trainyard.prove.picture import DrawnLine, draw

STEPS = 60
SPEC: dict[str, Any] = {
    "description": "The demonstration: a small Llama on the source of Python's standard library",
    "tags": ["demo"],
    "model": {"size": "debug", "dropout": 0.1},
    "training": {"steps": STEPS, "seq_len": 128, "global_batch_size": 16, "micro_batch_size": 4},
    "optimizer": {"lr": 3e-3},
    "checkpoint": {"interval_steps": 20},
    "resources": {"world_size": 2, "device": "cpu"},
}
# Slots of each attempt, and the step at which the demonstration stops it.
LEGS: tuple[tuple[int, int | None], ...] = ((2, 18), (4, 38), (3, None))
TOLERANCE = 1e-4
LOSS = "train/loss"
READY_SECONDS = 120
JOB_SECONDS = 300
SAMPLE_SECONDS = 120


def main() -> int:
    """Run the demonstration and return the exit status."""
    parser = argparse.ArgumentParser(prog="make demo", description=__doc__)
    parser.add_argument("--data", type=Path, default=Path(".demo"), help="kept; %(default)s")
    folders = Folders(parser.parse_args().data.absolute())
    try:
        with control_plane(folders) as yard:
            same = tell_story(yard, folders)
            if sys.stdout.isatty():
                serve(yard, folders)
    except (TrainyardError, TimeoutError, RuntimeError) as error:
        show(f"The demonstration failed: {error}")
        show(f"Logs are in {folders.root / 'logs'}.")
        return 1
    show("\nEverything has ended; the data is kept.")
    show(f"To see these jobs again: make up DATA={os.path.relpath(folders.root)}")
    return 0 if same else 1


def tell_story(yard: Client, folders: Folders) -> bool:
    """Train twice, compare, draw, and generate text; return whether both runs were the same."""
    show("\n1. A run without a break, on 2 slots.")
    whole = yard.submit(SPEC | {"name": "uninterrupted"})
    finish(yard, whole.id)
    show("\n2. The same job, stopped and resumed on other numbers of slots.")
    broken = yard.submit(SPEC | {"name": "resumed"})
    for index, (slots, stop_at) in enumerate(LEGS):
        if index:
            resume(yard, broken.id, slots)
        if stop_at is not None:
            stop_at_step(yard, broken.id, stop_at)
        else:
            finish(yard, broken.id)
    show("\n3. Laid over each other.")
    same = compare(yard, folders, whole.id, broken.id)
    show("\n4. What the model has learned in a minute on a CPU, continuing `def `:")
    show(sample(yard, broken.id))
    return same


def resume(yard: Client, job_id: str, slots: int) -> None:
    """Resume on a number of slots, and print the changes of the server's preview."""
    reply = yard.resume(job_id, world_size=slots)
    changes = [f"{c.name}: {c.before} -> {c.after}" for c in reply.preview.changes if c.changed]
    show(f"   trainyard resume resumed --world-size {slots}")
    show(f"   continues from step {reply.preview.step}; changes {', '.join(changes)}")


def stop_at_step(yard: Client, job_id: str, step: int) -> None:
    """Stop the job once it has reported a step, and wait until it has saved and left."""
    for event in yard.stream(job_id=job_id):
        if isinstance(event, Resync):
            continue
        if isinstance(event.data, MetricsStored) and event.data.step >= step:
            break
        if event.kind == "job_ended":
            refuse_failure(yard.job(job_id))
    yard.stop(job_id, reason="the demonstration resumes it elsewhere")
    job = yard.wait(job_id, timeout=JOB_SECONDS, poll_seconds=0.2)
    refuse_failure(job)
    show(f"   stopped at step {job.progress.step} of {STEPS} on {job.layout}, checkpoint saved")


def finish(yard: Client, job_id: str) -> None:
    """Wait until the job has succeeded."""
    job = yard.wait(job_id, timeout=JOB_SECONDS, poll_seconds=0.2)
    refuse_failure(job)
    loss = job.progress.loss
    show(f"   {job.state} at step {job.progress.step} on {job.layout}, loss {loss:.4f}")


def refuse_failure(job: JobView) -> None:
    """Raise when a job has ended in another state than expected."""
    if job.state in {JobState.FAILED, JobState.CANCELLED}:
        raise RuntimeError(f"job {job.name} is {job.state}: {job.reason}")


def compare(yard: Client, folders: Folders, whole_id: str, broken_id: str) -> bool:
    """Compare both runs step by step, draw them, and return whether they are the same."""
    whole, broken = course(yard, whole_id, LOSS), course(yard, broken_id, LOSS)
    batch = SPEC["training"]["global_batch_size"]
    differ = batch * differing_steps(broken.digests, whole.digests, steps=STEPS)
    deviation = broken.off(whole, LOSS, steps=STEPS)
    show(f"   {differ} of {STEPS * batch} sequences differ")
    show(f"   largest relative difference of the loss: {deviation:.1e}")
    for attempt in sorted(yard.attempts(broken_id), key=lambda attempt: attempt.number):
        if attempt.continuity is not None:
            word = "continuous" if attempt.continuity.ok else "NOT continuous"
            show(f"   attempt {attempt.number} on {attempt.layout_name}: {word}")
    caption = f"{differ} of {STEPS * batch} sequences differ; loss within {deviation:.1e}"
    picture = folders.root / "resume.svg"
    picture.write_text(drawing(whole, broken, caption), encoding="utf-8")
    show(f"   picture: {picture}")
    return differ == 0 and deviation <= TOLERANCE


def drawing(whole: Course, broken: Course, caption: str) -> str:
    """Return the picture of both runs."""
    losses = sorted(broken.of(LOSS).items())
    segments = [
        DrawnLine(
            f"attempt {number}: {slots} ranks",
            [(step, loss) for step, loss in losses if broken.attempts[step] == number],
        )
        for number, (slots, _) in enumerate(LEGS, start=1)
    ]
    return draw(
        DrawnLine("uninterrupted, 2 ranks", sorted(whole.of(LOSS).items())),
        segments,
        caption=caption,
    )


def sample(yard: Client, job_id: str) -> str:
    """Return text that the job's newest checkpoint generates."""
    newest = max(yard.checkpoints(job_id), key=lambda c: (c.attempt, c.step))
    show('   trainyard sample resumed --prompt "def " --seed 1')
    sample = yard.sample(newest.id, "def ", seed=1)
    operation = yard.wait_for_operation(sample.id, timeout=SAMPLE_SECONDS, poll_seconds=0.2)
    if operation.outcome is None or operation.outcome.sample is None:
        raise RuntimeError(f"no text could be drawn: {operation.outcome or operation.state}")
    return "\n".join(f"   | {line}" for line in operation.outcome.sample.text.rstrip().splitlines())


@contextlib.contextmanager
def control_plane(folders: Folders) -> Iterator[Client]:
    """Start the embedded control plane, and end it with all that it runs."""
    folders.make()
    show(f"Starting the control plane on {folders.root}")
    # The user's own profile is not changed.
    command = [sys.executable, "-m", "embedded", "up", "--data", str(folders.root), "--profile="]
    with folders.log("up").open("ab") as log:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    try:
        with connect(folders, process) as yard:
            show(f"Dashboard: {yard.url}")
            yield yard
    finally:
        down = [sys.executable, "-m", "embedded", "down", "--data", str(folders.root)]
        subprocess.run(down, check=False, stdout=subprocess.DEVNULL)
        process.wait(timeout=60)


def connect(folders: Folders, process: subprocess.Popen[bytes]) -> Client:
    """Return a connection once the server answers and its node offers slots."""
    deadline = time.monotonic() + READY_SECONDS
    while time.monotonic() < deadline:
        if process.poll() is not None:
            raise RuntimeError(f"the control plane did not start; see {folders.log('up')}")
        record = read_record(folders.record)
        if record is not None and record.up is not None and folders.admin_token.exists():
            yard = Client(record.url, folders.admin_token.read_text(encoding="utf-8").strip())
            with contextlib.suppress(TrainyardError):
                if any(node.online for node in yard.nodes()):
                    return yard
            yard.close()
        time.sleep(0.2)
    raise RuntimeError(f"the control plane was not ready after {READY_SECONDS} s")


def serve(yard: Client, folders: Folders) -> None:
    """Keep the dashboard up until Ctrl-C."""
    code = yard.create_token("demo-login", kind="login").secret
    show(f"\nLook at it: {yard.url}/login?code={code}")
    show("Try next: press Resume on a job and choose another number of slots, or")
    show(f"  export TRAINYARD_URL={yard.url} TRAINYARD_TOKEN=$(cat {folders.user_token})")
    show("  .venv/bin/trainyard submit examples/debug.toml --wait")
    show("Ctrl-C ends it.")
    with contextlib.suppress(KeyboardInterrupt):
        while True:
            time.sleep(3600)


def show(text: str) -> None:
    """Print a line at once."""
    print(text, flush=True)


if __name__ == "__main__":
    sys.exit(main())
