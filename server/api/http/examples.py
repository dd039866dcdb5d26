"""Examples for the OpenAPI document; a test validates each example with its model."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel

from trainyard.protocol.node_sources.messages import (
    CheckReport,
    MessagesRequest,
    RequestClaim,
    SourceRegistration,
    SourceReport,
)
from trainyard.protocol.node_sources.views import NodesRequest, SourceOrder
from trainyard.protocol.past_runs.views import ImportedPoints, ImportRequest
from trainyard.protocol.rest.access import SessionRequest, TokenRequest
from trainyard.protocol.rest.checkpoints import ExportRequest, ForkRequest, SampleRequest
from trainyard.protocol.rest.jobs import JobRequest, PriorityRequest, StopRequest
from trainyard.protocol.rest.metrics_and_logs import ComparisonView
from trainyard.protocol.rest.nodes import CordonRequest, DrainRequest, LabelChange
from trainyard.protocol.rest.projects import ProjectRequest, ProjectSettings
from trainyard.protocol.rest.resume import ResumeRequest
from trainyard.protocol.shell_sessions.messages import ShellInputRequest, ShellOutputMessage
from trainyard.protocol.shell_sessions.views import ShellInput, ShellRequest
from trainyard.protocol.user_accounts.device_flow import (
    DeviceCode,
    DeviceDecision,
    DeviceRequest,
    UserCode,
)
from trainyard.protocol.user_accounts.members import (
    EveryoneRequest,
    MemberRequest,
    OwnerRequest,
    ServiceAccountRequest,
    ServiceTokenRequest,
    UserLimits,
)
from trainyard.protocol.user_accounts.secret_views import SecretRequest
from trainyard.protocol.user_accounts.single_sign_on import GroupRequest, LinkRequest
from trainyard.protocol.user_accounts.views import (
    InvitationAcceptance,
    InvitationCode,
    PasswordChange,
    PasswordLogin,
    UserChange,
    UserRequest,
)
from trainyard.protocol.worker_messages import (
    PROTOCOL,
    Claim,
    EndedJobsRequest,
    NodeHeartbeat,
    OperationReport,
    Registration,
    Report,
)
from trainyard.spec.job import JobSpec

Examples = Mapping[type[BaseModel], Mapping[str, Mapping[str, Any]]]

WORKER = {
    "folder": "9f3c1b7de04a4c56a1d2f8e07b6c5d43",
    "boot_id": "0f0ecf4c-8d6f-4c46-a7f6-66d3ed1f5f35",
}

EXAMPLES: Examples = {
    JobSpec: {
        "small": {
            "name": "first-run",
            "model": {"family": "llama3", "size": "debug"},
            "data": {"source": "corpus", "corpus": "python-stdlib"},
            "training": {"steps": 60, "global_batch_size": 16, "micro_batch_size": 2},
            "resources": {"world_size": 2},
        }
    },
    StopRequest: {"with_reason": {"reason": "the node is needed elsewhere"}},
    ResumeRequest: {
        "as_before": {},
        "on_four_slots": {"world_size": 4},
        "compare_only": {"world_size": 3, "dry_run": True},
        "more_steps": {"steps": 120},
    },
    ExportRequest: {
        "as_stored": {},
        "for_others": {"dtype": "bfloat16", "name": "llama-400", "shard_gib": 2},
    },
    SampleRequest: {"prompt": {"prompt": "def ", "max_tokens": 100, "temperature": 0.7}},
    ForkRequest: {
        "as_before": {},
        "more_steps": {"name": "longer", "changes": {"training": {"steps": 120}}},
        "weights_alone": {"parts": ["model"], "changes": {"optimizer": {"lr": 1e-4}}},
        "what_would_hold": {"changes": {"training": {"seed": 1}}, "dry_run": True},
    },
    CordonRequest: {"with_a_reason": {"reason": "waits for a new power supply"}},
    LabelChange: {"set_one_withdraw_one": {"labels": {"zone": "a", "rack": None}}},
    DrainRequest: {"save_and_move": {}, "let_it_finish": {"running": "finish"}},
    PriorityRequest: {"by_name": {"priority": "high"}, "by_number": {"priority": -20}},
    ImportRequest: {
        "of_wandb": {
            "run": {
                "tool": "wandb",
                "run_id": "9dcz13mm",
                "digest": "sha256:" + "5e" * 32,
                "points": 3,
            },
            "name": "calm-river",
            "arguments": {"lr": 0.01},
            "state": "succeeded",
            "start_time": 1767225600.0,
            "seconds": 3600.0,
            "last_step": 20,
        }
    },
    ImportedPoints: {
        "first": {
            "start": 0,
            "series": [
                {
                    "name": "train/loss",
                    "points": [[0, 1767225600.0, 2.5], [20, 1767225660.0, "NaN"]],
                }
            ],
        }
    },
    ProjectRequest: {
        "by_weight": {"name": "vision", "weight": 2},
        "with_quotas": {"name": "vision", "max_slots": 16, "slot_hours_per_month": 1000},
    },
    OwnerRequest: {"ada": {"owner": "ada"}},
    MemberRequest: {
        "member": {"role": "member"},
        "with_own_limits": {"role": "member", "max_slots": 16, "max_running": 4},
    },
    UserLimits: {"limits": {"max_slots": 8, "max_running": 2}, "none": {"max_slots": None}},
    GroupRequest: {
        "member": {"group": "/research/vision", "role": "member"},
        "none": {"group": "/research/vision", "role": None},
    },
    DeviceRequest: {"login": {"host": "login-1"}},
    DeviceCode: {"poll": {"device_code": "wW0j..."}},
    UserCode: {"check": {"user_code": "BCDF-GHJK"}},
    DeviceDecision: {"approve": {"user_code": "BCDF-GHJK", "approved": True}},
    SecretRequest: {"token": {"value": "hf_..."}},
    EveryoneRequest: {"viewer": {"role": "viewer"}, "none": {"role": None}},
    ServiceAccountRequest: {"nightly": {"name": "nightly", "role": "member"}},
    ServiceTokenRequest: {"for_ci": {"name": "ci", "scopes": ["jobs:read", "jobs:write"]}},
    ProjectSettings: {"another_weight": {"weight": 3}, "without_a_quota": {"max_slots": None}},
    JobRequest: {"save": {"kind": "save"}},
    SessionRequest: {
        "by_token": {"token": "ty_api_..."},
        "by_link": {"code": "ty_login_..."},
        "by_password": {"name": "ada", "password": "correct horse battery"},
    },
    UserRequest: {
        "member": {"name": "ada", "email": "ada@example.org"},
        "operator": {"name": "bob", "role": "operator"},
    },
    UserChange: {
        "other_role": {"role": "operator"},
        "without_email": {"email": None},
        "disable": {"state": "disabled"},
        "with_account": {"unix_account": "ada"},
    },
    PasswordChange: {"new": {"current": "correct horse battery", "new": "stapled eleven times"}},
    PasswordLogin: {
        "laptop": {"name": "ada", "password": "correct horse battery", "token_name": "laptop"}
    },
    LinkRequest: {"own": {"password": "correct horse battery"}},
    InvitationCode: {"code": {"code": "ty_invitation_..."}},
    InvitationAcceptance: {
        "first": {"code": "ty_invitation_...", "password": "correct horse battery"}
    },
    TokenRequest: {
        "for_a_program": {"name": "ci", "kind": "api"},
        "for_a_node": {"name": "gpu-01", "kind": "join"},
    },
    ShellRequest: {
        "on_a_rank": {"argv": ["nvidia-smi", "-q"], "rank": 3},
        "shell": {"terminal": {"rows": 50, "columns": 160, "kind": "xterm-256color"}},
    },
    ShellInput: {"line": {"start": 0, "content": "bHMgLWwK"}},
    ShellOutputMessage: {
        "first": {"protocol": PROTOCOL, "start": 0, "content": "dG90YWwgMAo="},
        "end": {"protocol": PROTOCOL, "start": 8, "exit": {"exit_code": 0}},
    },
    ShellInputRequest: {"wait": {"protocol": PROTOCOL, "start": 0, "wait_seconds": 10}},
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
            "worker": WORKER,
            "version": "1.0.0",
        }
    },
    EndedJobsRequest: {
        "one": {"protocol": PROTOCOL, "node": "cpu-01", "jobs": ["01kdvdna005x164m7fvjce2b6h"]}
    },
    NodeHeartbeat: {"idle": {"protocol": PROTOCOL, "node": "cpu-01", "worker": WORKER}},
    OperationReport: {
        "half_way": {
            "protocol": PROTOCOL,
            "node": "cpu-01",
            "fence": 1,
            "progress": {"doing": "compares __0_0.distcp", "done": 512, "total": 1024},
        }
    },
    MessagesRequest: {"at_once": {"protocol": PROTOCOL, "node": "cpu-01", "wait_seconds": 0}},
    Claim: {"claim": {"protocol": PROTOCOL, "node": "cpu-01", "worker": WORKER}},
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
        }
    },
    SourceRegistration: {
        "slurm": {
            "protocol": PROTOCOL,
            "name": "slurm-a100",
            "kind": "slurm",
            "shape": {"slots": 8, "device": "cuda", "labels": {"fabric": "ib-1"}},
            "limits": {"nodes": 16, "nodes_per_request": 4},
            "request_seconds": 14_400.0,
            "idle_seconds": 300.0,
            "leave_seconds": 600.0,
            "check_addresses": True,
            "version": "1.0.0",
        }
    },
    CheckReport: {
        "found": {
            "protocol": PROTOCOL,
            "pilot": {
                "request_id": "01jd3m6y0000000000000000a7",
                "index": 0,
                "instance": "4711.0.0",
            },
            "results": [{"name": "tls", "passed": True, "detail": "the certificate is valid"}],
        }
    },
    SourceOrder: {"with_reason": {"reason": "maintenance until noon"}},
    NodesRequest: {"two": {"nodes": 2}},
    RequestClaim: {
        "of_one_node": {
            "protocol": PROTOCOL,
            "source": "slurm-a100",
            "secret_hashes": ["5e884898da28047151d0e56f8dc6292773603d0d6aabbdd62a11ef721d1542d8"],
        }
    },
    SourceReport: {
        "listing": {
            "protocol": PROTOCOL,
            "source": "slurm-a100",
            "complete": True,
            "jobs": [
                {
                    "request_id": "01jd3m6y0000000000000000a7",
                    "ref": "4711",
                    "state": "pending",
                    "reason": "Priority",
                }
            ],
        },
        "failed": {
            "protocol": PROTOCOL,
            "source": "slurm-a100",
            "error": "squeue: Unable to contact slurm controller",
        },
    },
}
"""Examples of request bodies, by model."""

ANSWERS: Examples = {
    ComparisonView: {
        "loss_of_two_layouts": {
            "jobs": [
                {
                    "id": "01jd3m6y0000000000000000a7",
                    "name": "llama-fsdp",
                    "state": "succeeded",
                    "layout": "FSDP 4",
                    "world_size": 4,
                    "start_time": 1767225600.0,
                    "last_step": 200,
                    "names": ["train/loss", "train/tokens"],
                    "curves": [
                        {
                            "name": "train/loss",
                            "branch": "lineage",
                            "steps": [100, 200],
                            "first_steps": [1, 101],
                            "min": [3.91, 2.84],
                            "max": [10.98, 4.02],
                            "last": [3.97, 2.87],
                            "count": [100, 100],
                            "non_finite": [0, 2],
                            "times": [1767225750.0, 1767225900.0],
                            "tokens": [3276800.0, 6553600.0],
                        }
                    ],
                },
                {
                    "id": "01jd3m8b0000000000000000c3",
                    "name": "llama-tensor",
                    "state": "queued",
                    "layout": "TP 4",
                    "world_size": 4,
                    "start_time": None,
                    "last_step": 0,
                    "names": [],
                    "curves": [],
                },
            ]
        }
    }
}
"""Examples of responses, by model."""
