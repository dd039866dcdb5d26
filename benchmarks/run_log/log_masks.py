"""Cost of masks for the log path: a supervisor reads, masks and packs a log, without a network.

The log is sent once without secrets, as before masks existed, and once with each number of secrets.

    python -m benchmarks.run_log.log_masks [--mib 64]
"""

from __future__ import annotations

import argparse
import os
import secrets
import tempfile
import time
from pathlib import Path

from benchmarks.report import emit
from trainyard.base.redaction import OutputMask
from worker.supervisor.spool import CHUNK_BYTES, SpoolFile

MIB = 1024 * 1024
LONGEST_SECONDS_PER_MIB = 0.05
"""Target: a rank that writes 2 MiB/s costs a tenth of a core."""


def seconds_per_mib(log: Path, mask: OutputMask) -> float:
    """Return the processor time to send a log, per MiB."""
    file = SpoolFile("log:0", log, owner=os.geteuid(), whole_lines=False, mask=mask)
    file.is_final = True
    began = time.process_time()
    while (chunk := file.next_chunk(CHUNK_BYTES)) is not None:
        file.acknowledged = chunk.end
    return (time.process_time() - began) / (log.stat().st_size / MIB)


def write_log(log: Path, mib: int) -> None:
    """Write lines as a trainer prints them; each has another step and other numbers."""
    with log.open("w", encoding="ascii") as file:
        for step in range(mib * MIB // 100):
            loss, norm = 10 / (1 + step * 1e-4), (step * 7919 % 1000) / 500
            file.write(
                f"step {step:8d} | loss {loss:9.6f} | grad_norm {norm:6.3f} | tokens/s "
                f"{(step * 104729) % 99999:6d} | memory {step % 64:3d}.5 GiB | lr 3.0e-04\n"
            )


def main() -> int:
    """Print a line per number of secrets; return 0 if all reach the target."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--mib", type=int, default=64, help="size of the log")
    mib: int = parser.parse_args().mib
    tokens = ["hf_" + secrets.token_urlsafe(30) for _ in range(20)]
    key = "\n".join(secrets.token_urlsafe(48) for _ in range(50))
    given = {"none": [], "one token": tokens[:1], "20 tokens": tokens, "a key of 50 lines": [key]}
    passed = True
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder, "log")
        write_log(log, mib)
        for words, values in given.items():
            mask = OutputMask(values)
            passed &= emit(
                "log path with masks",
                figure=seconds_per_mib(log, mask),
                unit="s of processor time per MiB",
                target=LONGEST_SECONDS_PER_MIB,
                at_least=False,
                packages=(),
                secrets=words,
                mib=mib,
            )
    return 0 if passed else 1


if __name__ == "__main__":
    raise SystemExit(main())
