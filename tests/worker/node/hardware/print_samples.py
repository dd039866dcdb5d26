"""Writes the worker's findings from NVML as JSON: its slots, and a sample after `SECONDS`.

Runs as its own process, because the loader reads LD_LIBRARY_PATH once.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path

from worker.node.hardware.accelerators import open_accelerators
from worker.node.hardware.devices import find_devices
from worker.node.hardware.samples import Sampler

folder, wanted, open_seconds = Path(sys.argv[1]), sys.argv[2], float(sys.argv[3])
try:
    accelerators = open_accelerators(device_files=folder, seconds=open_seconds)
    devices = find_devices(accelerators)
except ValueError as error:
    sys.stdout.write(json.dumps({"refused": str(error)}))
    os._exit(0)  # a thread may hang in the driver
sampler = Sampler(accelerators, {"data_dir": folder}, seconds=0.02, overdue_seconds=1)
deadline = time.monotonic() + 20
while True:
    began = time.monotonic()
    sample = sampler.sample()
    took = time.monotonic() - began
    assert sample is not None
    if wanted in sample.model_dump_json() or time.monotonic() > deadline:
        break
    time.sleep(0.02)
sys.stdout.write(
    json.dumps(
        {
            "visible": devices.visible,
            "hardware": devices.hardware.model_dump(mode="json"),
            "sample": sample.model_dump(mode="json"),
            "took": took,
        }
    )
)
sys.stdout.flush()
os._exit(0)
