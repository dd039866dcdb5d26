"""`python -m torch.distributed.run` as far as the worker uses it: starts the ranks of one node.

It numbers ranks by the allocation in `attempt.json`, where torchrun counts through a store.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

POLL_SECONDS = 0.02


def main() -> int:
    """Start the ranks, end all of them after the first that fails; return 1 after a failure."""
    end = sys.argv.index("--no-python")
    options = dict(word.removeprefix("--").partition("=")[::2] for word in sys.argv[1:end])
    command = sys.argv[end + 1 :]
    run = Path(command[command.index("rank") + 1])
    allocation = json.loads((run / "attempt.json").read_text())["allocation"]
    sizes = [len(share["slots"]) for share in allocation]
    node = int(options.get("node-rank", 0))
    world = {
        "WORLD_SIZE": str(sum(sizes)),
        "LOCAL_WORLD_SIZE": str(sizes[node]),
        "MASTER_ADDR": options.get("master-addr", "127.0.0.1"),
        "MASTER_PORT": options.get("master-port") or str(_free_port()),
    }
    ranks = []
    for local in range(sizes[node]):
        numbers = {"RANK": str(sum(sizes[:node]) + local), "LOCAL_RANK": str(local)}
        ranks.append(subprocess.Popen(command, env=os.environ | world | numbers))
    while any(rank.poll() is None for rank in ranks) and not any(rank.poll() for rank in ranks):
        time.sleep(POLL_SECONDS)
    for rank in ranks:
        rank.send_signal(signal.SIGTERM)
    codes = [rank.wait() for rank in ranks]
    return int(any(codes))


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


if __name__ == "__main__":
    sys.exit(main())
