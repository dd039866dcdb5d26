"""Examples of request bodies for the OpenAPI document; a test reads each by its model."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel

from specs.api.access import SessionRequest, TokenRequest
from specs.api.jobs import JobRequest, StopRequest
from specs.api.resume import ResumeRequest
from specs.job import JobSpec
from specs.reports import PROTOCOL, Claim, NodeHeartbeat, Registration, Report

EXAMPLES: Mapping[type[BaseModel], Mapping[str, Mapping[str, Any]]] = {
    JobSpec: {
        "small": {
            "name": "first-run",
            "model": {"family": "llama3", "size": "debug"},
            "data": {"source": "corpus", "corpus": "python-stdlib"},
            "training": {"steps": 60, "global_batch_size": 16, "micro_batch_size": 2},
            "resources": {"world_size": 2},
        },
    },
    StopRequest: {"with_reason": {"reason": "the node is needed elsewhere"}},
    ResumeRequest: {
        "as_before": {},
        "on_four_slots": {"world_size": 4},
        "compare_only": {"world_size": 3, "dry_run": True},
        "more_steps": {"steps": 120},
    },
    JobRequest: {"save": {"kind": "save"}},
    SessionRequest: {"by_token": {"token": "ty_api_..."}, "by_link": {"code": "ty_login_..."}},
    TokenRequest: {
        "for_a_program": {"name": "ci", "kind": "api"},
        "for_a_node": {"name": "gpu-01", "kind": "join"},
    },
    Registration: {
        "cpu_node": {
            "protocol": PROTOCOL,
            "node": "cpu-01",
            "address": "10.0.0.5",
            "hardware": {
                "device": "cpu",
                "slots": 4,
                "device_name": "x86-64",
                "device_memory_bytes": 8 * 2**30,
                "cores": 4,
                "memory_bytes": 32 * 2**30,
            },
            "roots": {"checkpoints": "1c8e1d0a-98a5-4f5f-9a51-0d6f9a3a7a10"},
            "version": "0.1.0",
        },
    },
    NodeHeartbeat: {"idle": {"protocol": PROTOCOL, "node": "cpu-01"}},
    Claim: {"claim": {"protocol": PROTOCOL, "node": "cpu-01"}},
    Report: {
        "lives": {
            "protocol": PROTOCOL,
            "node": "cpu-01",
            "identity": {
                "boot_id": "0f0ecf4c-8d6f-4c46-a7f6-66d3ed1f5f35",
                "pid_namespace": "4026531836",
                "pid": 4711,
                "start_time": 1234567,
            },
            "heartbeat": {"phase": "training", "step": 12, "time": 1767225600.0},
        },
    },
}
