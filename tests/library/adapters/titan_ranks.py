"""Runs torchtitan's own trainer on ranks of this machine, for orders from its input.

Run by torchtitan's interpreter. It imports torchtitan once, and forks the ranks of each order from
this process, because four ranks would import it on two cores in half a minute. Its input has one
order per line, as JSON; for each it prints the exit codes of the ranks.
"""

from __future__ import annotations

import importlib
import io
import json
import os
import signal
import sys
import time
import traceback
from contextlib import redirect_stdout
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

ROOT = Path(__file__).resolve().parents[3]
sys.path[:0] = [str(ROOT), str(ROOT / "library")]

import torch.distributed as dist  # noqa: E402

importlib.import_module("examples.programs.torchtitan.on_cpu")
train: Any = importlib.import_module("torchtitan.train")
utils: Any = importlib.import_module("torchtitan.distributed.utils")
utils.set_pg_timeouts = lambda *_, **__: None
trainer: Any = importlib.import_module("torchtitan.trainer")
# At its end rank 0 sleeps, so that other ranks can still use its store; here it has none.
trainer.time = SimpleNamespace(perf_counter=time.perf_counter, sleep=lambda _: None)
importlib.import_module("tests.library.adapters.titan_recipes")
importlib.import_module("trainyard.adapters.torchtitan.exact_steps")
command: Any = importlib.import_module("trainyard.adapters.torchtitan.__main__")
session: Any = importlib.import_module("trainyard.run.session")


def main() -> None:
    """Run the ranks of each order."""
    for line in sys.stdin:
        order = json.loads(line)
        answer = printed(order["words"]) if "words" in order else under_a_parent(order)
        sys.stdout.write(f"{json.dumps(answer)}\n")
        sys.stdout.flush()


def printed(words: list[str]) -> tuple[int, str]:
    """Return the exit code and the output of the adapter's command."""
    with redirect_stdout(io.StringIO()) as output:
        code = command.main([*words, "--module", "tests.library.adapters.titan_recipes"])
    return code, output.getvalue()


def under_a_parent(order: dict[str, Any]) -> list[int]:
    """Run the ranks of an order under a process of their own, as torchrun does.

    The messages of saves without a job have the number of the parent process in their names.
    """
    reader, writer = os.pipe()
    if pid := os.fork():
        os.close(writer)
        with os.fdopen(reader) as pipe:
            codes: list[int] = json.loads(pipe.read())
        os.waitpid(pid, 0)
        return codes
    try:
        with os.fdopen(writer, "w") as pipe:
            pipe.write(json.dumps(run(order)))
    finally:
        os._exit(0)


def run(order: dict[str, Any]) -> list[int]:
    """Run the ranks of an order; end all of them once one has failed."""
    recipe = ["--module", "tests.library.adapters.titan_recipes", "--config", order["recipe"]]
    # Once, as it takes a second of a processor.
    config = train.ConfigManager().parse_args([*recipe, *order["options"]])
    store = dist.TCPStore(
        "127.0.0.1", 0, is_master=True, wait_for_workers=False, timeout=timedelta(seconds=60)
    )
    ranks = [start(order, config, rank=rank, port=store.port) for rank in range(order["ranks"])]
    codes: dict[int, int] = {}
    while len(codes) < len(ranks):
        pid, status = os.wait()
        codes[pid] = os.waitstatus_to_exitcode(status)
        if codes[pid]:
            for other in set(ranks) - codes.keys():
                os.kill(other, signal.SIGKILL)
    return [codes[pid] for pid in ranks]


def start(order: dict[str, Any], config: Any, *, rank: int, port: int) -> int:
    """Fork a rank; return its process."""
    if pid := os.fork():
        return pid
    code = 1
    try:
        os.chdir(order["folder"])
        log = os.open(f"rank-{rank}.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.dup2(log, 1)
        os.dup2(log, 2)
        os.environ |= {
            "RANK": str(rank),
            "LOCAL_RANK": str(rank),
            "WORLD_SIZE": str(order["ranks"]),
            "LOCAL_WORLD_SIZE": str(order["ranks"]),
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(port),
            "TORCHELASTIC_USE_AGENT_STORE": "True",  # the store exists: rank 0 hosts none
            "GLOO_SOCKET_IFNAME": "lo",
            **order["variables"],
        }
        end_at(order.get("end"), rank)
        train.ConfigManager = lambda: SimpleNamespace(parse_args=lambda: config)
        train.main()
        session.init().close()  # such a process ends without the functions of atexit
        code = 0
    finally:
        if code:
            traceback.print_exc()
        sys.stderr.flush()
        os._exit(code)


def end_at(end: dict[str, int] | None, rank: int) -> None:
    """Have a rank end by a signal after a step, before the step's save."""
    if end is None or rank != end["rank"]:
        return
    progress = session.Run.progress

    def progress_to_the_end(self: Any, step: int, total: int | None = None) -> None:
        progress(self, step, total)
        if step == end["step"]:
            self.flush()
            os.kill(os.getpid(), end["signal"])
            time.sleep(60)

    session.Run.progress = progress_to_the_end


if __name__ == "__main__":
    main()
