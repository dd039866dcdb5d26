"""Environment variables of a job: reserved names, and the allow-list for jobs without code."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Annotated, Literal

from pydantic import Field

from trainyard.base.model_base import SpecModel
from trainyard.base.names import NAME
from trainyard.base.problems import Problem, pointer_to
from trainyard.base.redaction import MASK, is_masked

ENV_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,127}")
RESERVED_ENV = re.compile(
    r"(RANK|LOCAL_RANK|WORLD_SIZE|LOCAL_WORLD_SIZE|MASTER_ADDR|MASTER_PORT|GROUP_RANK"
    r"|CUDA_VISIBLE_DEVICES|PYTHON(PATH|HOME|STARTUP)|LD_(PRELOAD|LIBRARY_PATH|AUDIT)|PATH"
    r"|TORCHELASTIC_.*|TRAINYARD_.*|AWS_.*|BOTO_.*|FSSPEC_.*)"
)
"""Names that the launcher sets or that the node reserves; a job must not set them."""


SecretOwner = Literal["project", "owner"]
SecretName = Annotated[str, Field(pattern=NAME, max_length=80, examples=["hf"])]


class SecretReference(SpecModel):
    """Reference to a secret, whose value the server delivers at each launch."""

    secret: SecretName
    """Name of the secret."""
    of: SecretOwner = "project"
    """Whose secret it is: of the job's `project`, or of the user who owns the job (`owner`)."""
    version: Annotated[int, Field(ge=1, lt=2**31)] | None = None
    """Version of the secret; by default the newest one at the time of each launch."""


Environment = Mapping[str, str | SecretReference]
"""Variables by name, each with its value or with a reference to a secret."""


@dataclass(frozen=True)
class Variable:
    """Legal values of one variable."""

    legal: str
    """Legal values, as text for people."""
    accepts: Callable[[str], bool]
    """Return whether a value is legal."""


def checked_environment(
    env: dict[str, str | SecretReference],
) -> dict[str, str | SecretReference]:
    """Return the variables unchanged if all names are well-formed and not reserved.

    Raises:
        ValueError: a name is malformed or reserved; the error gives the name.
    """
    for name in env:
        if not ENV_NAME.fullmatch(name):
            raise ValueError(f"{name!r} is no name of an environment variable")
        if RESERVED_ENV.fullmatch(name):
            raise ValueError(f"{name} is set by the launcher and cannot be chosen")
    return env


def plain_variables(env: Environment) -> dict[str, str]:
    """Return the variables whose values are in the spec."""
    return {name: value for name, value in env.items() if isinstance(value, str)}


def secret_references(env: Environment) -> dict[str, SecretReference]:
    """Return the references to secrets, by variable."""
    return {name: value for name, value in env.items() if not isinstance(value, str)}


def is_allowed(name: str, value: str) -> bool:
    """Return whether a job without its own code may set a variable to a value."""
    variable = ALLOWED.get(name)
    return variable is not None and variable.accepts(value)


def environment_problems(env: Environment) -> list[Problem]:
    """Return a problem for each variable in `env` whose name or value is not on the allow-list.

    A variable might run, load or contact something. A deny-list cannot be complete: for example,
    `PYTHONWARNINGS` and `BROWSER` together start a shell. No problem contains the value of a
    variable, because the value may be a secret.
    """
    problems: list[Problem] = []
    shown = False
    for name, value in env.items():
        variable = ALLOWED.get(name)
        if variable is None:
            detail = f"{name} is legal only where jobs may bring code (TRAINYARD_ALLOW_CODE)"
            if not shown:  # only once, because it is long
                detail += f"; legal without: {allowed_names()}"
                shown = True
        elif not isinstance(value, str):
            detail = f"{name} takes no secret; legal: {variable.legal}"
        elif variable.accepts(value):
            continue
        else:
            detail = f"the value of {name} is not legal; legal: {variable.legal}"
        problems.append(Problem(pointer=f"/env/{name}", detail=detail))
    return problems


def masked_problems(document: object, *path: str | int) -> list[Problem]:
    """Return a problem for each masked value in a JSON document; a mask must not be stored."""
    if isinstance(document, str):
        detail = f"{MASK!r} masks a hidden value; give the value itself, or leave it out"
        return [Problem(pointer=pointer_to(path), detail=detail)] if is_masked(document) else []
    items: list[tuple[str | int, object]] = []
    if isinstance(document, Mapping):
        items = [(str(name), value) for name, value in document.items()]
    elif isinstance(document, list | tuple):
        items = list(enumerate(document))
    return [problem for part, value in items for problem in masked_problems(value, *path, part)]


def allowed_names() -> str:
    """Return the names of the allow-list, grouped by common prefix."""
    groups = itertools.groupby(sorted(ALLOWED), key=lambda name: name.split("_")[0])
    words = []
    for first, group in groups:
        names = [name.removeprefix(f"{first}_") for name in group]
        words.append(f"{first}_{{{','.join(names)}}}" if len(names) > 1 else f"{first}_{names[0]}")
    return " ".join(words)


# ---- kinds of values ----------------------------------------------------------------------------


def _like(pattern: str, legal: str) -> Variable:
    compiled = re.compile(pattern)
    return Variable(legal, lambda value: compiled.fullmatch(value) is not None)


def _one_of(values: str) -> Variable:
    words = values.split()
    return Variable(" / ".join(words), frozenset(words).__contains__)


def _integer(low: int, high: int) -> Variable:
    def accepts(value: str) -> bool:
        return bool(re.fullmatch(r"-?[0-9]{1,18}", value)) and low <= int(value) <= high

    return Variable(f"an integer from {low} to {high}", accepts)


def _several(values: str, *, before: str = "", sign: str = "") -> Variable:
    """Accept a comma-separated list of `values`.

    `before` may precede the list, and a character of `sign` may precede each value.
    """
    words = sorted(values.split())
    each = rf"[{sign}]?({'|'.join(words)})" if sign else f"({'|'.join(words)})"
    first = f"optionally {before!r} and then " if before else ""
    after = f", each after {' or '.join(map(repr, sign))} or nothing" if sign else ""
    pattern = f"({re.escape(before)})?{each}(,{each})*"
    return _like(pattern, f"{first}{', '.join(words)}, by commas{after}")


def _settings(**values: str) -> Variable:
    """Accept comma-separated `name:value` pairs; each name has a pattern for its values."""
    each = "|".join(f"{name}:({pattern})" for name, pattern in values.items())
    legal = f"name:value by commas, with the names {', '.join(sorted(values))}"
    return _like(f"({each})(,({each}))*", legal)


FLAG = _one_of("0 1")
_SWITCH = "True|False"
_DIVISION = "(>|[0-9]{1,9}):[0-9]{1,9}"

_KINDS: Mapping[str, Variable] = {
    """
    NCCL_P2P_DISABLE NCCL_P2P_DIRECT_DISABLE NCCL_P2P_USE_CUDA_MEMCPY NCCL_PXN_DISABLE
    NCCL_SHM_DISABLE NCCL_NET_DISABLE_INTRA NCCL_NET_GDR_READ NCCL_NET_SHARED_BUFFERS
    NCCL_IB_DISABLE NCCL_IB_SPLIT_DATA_ON_QPS NCCL_IB_ADAPTIVE_ROUTING NCCL_IB_MERGE_NICS
    NCCL_CUMEM_ENABLE NCCL_CUMEM_HOST_ENABLE NCCL_DMABUF_ENABLE NCCL_GRAPH_MIXING_SUPPORT
    NCCL_GRAPH_REGISTER NCCL_LOCAL_REGISTER NCCL_IGNORE_CPU_AFFINITY NCCL_SET_THREAD_NAME
    TORCH_GLOO_LAZY_INIT TORCH_SHOW_CPP_STACKTRACES TORCHDYNAMO_VERBOSE
    TORCH_NCCL_AVOID_RECORD_STREAMS TORCH_NCCL_BLOCKING_WAIT TORCH_NCCL_CUDA_EVENT_CACHE
    TORCH_NCCL_DESYNC_DEBUG TORCH_NCCL_DUMP_ON_TIMEOUT TORCH_NCCL_ENABLE_MONITORING
    TORCH_NCCL_ENABLE_TIMING TORCH_NCCL_HIGH_PRIORITY TORCH_NCCL_NAN_CHECK
    PYTORCH_NO_CUDA_MEMORY_CACHING CUDA_CACHE_DISABLE CUDA_FORCE_PTX_JIT CUDA_LAUNCH_BLOCKING
    NVIDIA_TF32_OVERRIDE TORCH_USE_CUDA_DSA
    """: FLAG,
    # NCCL writes to the log of the rank; NCCL_DEBUG_FILE could redirect this output to any file.
    "NCCL_DEBUG": _one_of("VERSION WARN INFO ABORT TRACE"),
    "NCCL_DEBUG_SUBSYS": _several(
        "INIT COLL P2P SHM NET GRAPH TUNING ENV ALLOC CALL PROXY NVLS BOOTSTRAP REG PROFILE "
        "RAS ALL",
        before="^",
    ),
    "NCCL_ALGO": _several("Tree Ring CollnetDirect CollnetChain NVLS NVLSTree PAT", before="^"),
    "NCCL_PROTO": _several("LL LL128 Simple", before="^"),
    # A name of an interface has at most 15 characters and no slash, so it cannot name a file.
    "NCCL_SOCKET_IFNAME GLOO_SOCKET_IFNAME": _like(
        r"[\^=]{0,2}[A-Za-z0-9_.-]{1,15}(,[A-Za-z0-9_.-]{1,15}){0,63}",
        "network interfaces by commas, optionally after '^' or '='",
    ),
    "NCCL_IB_HCA": _like(
        r"[\^=]{0,2}[A-Za-z0-9_.-]{1,32}(:[0-9]{1,3})?(,[A-Za-z0-9_.-]{1,32}(:[0-9]{1,3})?){0,63}",
        "adapters with an optional port by commas, as in mlx5_0:1, optionally after '^' or '='",
    ),
    "NCCL_SOCKET_FAMILY": _one_of("AF_INET AF_INET6"),
    "NCCL_NTHREADS": _one_of("64 128 256 512"),
    "NCCL_P2P_LEVEL NCCL_NET_GDR_LEVEL": _one_of("LOC NVL PIX PXB PHB SYS 0 1 2 3 4 5"),
    "NCCL_LAUNCH_MODE": _one_of("PARALLEL GROUP"),
    "NCCL_IB_GID_INDEX": _integer(-1, 255),
    "NCCL_CROSS_NIC NCCL_IB_PCI_RELAXED_ORDERING": _integer(0, 2),
    "NCCL_MNNVL_ENABLE NCCL_NVLS_ENABLE": _integer(0, 2),
    "TORCH_NCCL_ASYNC_ERROR_HANDLING": _integer(0, 3),
    "NCCL_IB_RETRY_CNT": _integer(0, 7),
    "NCCL_IB_SL": _integer(0, 15),
    "NCCL_IB_TC": _integer(0, 255),
    "MALLOC_ARENA_MAX": _integer(0, 4096),
    "TORCH_FR_BUFFER_SIZE TORCH_NCCL_TRACE_BUFFER_SIZE": _integer(0, 10**7),
    "MEMORY_HISTORY": _integer(0, 10**9),
    """
    NCCL_BUFFSIZE NCCL_P2P_NET_CHUNKSIZE NCCL_LL_BUFFSIZE NCCL_LL128_BUFFSIZE
    NCCL_IB_AR_THRESHOLD MALLOC_MMAP_THRESHOLD_ MALLOC_TRIM_THRESHOLD_ CUDA_CACHE_MAXSIZE
    """: _integer(0, 2**40),
    "NCCL_SOCKET_NTHREADS": _integer(1, 16),
    "NCCL_IB_TIMEOUT": _integer(1, 31),
    "CUDA_DEVICE_MAX_CONNECTIONS": _integer(1, 32),
    """
    NCCL_NSOCKS_PERTHREAD NCCL_MIN_NCHANNELS NCCL_MAX_NCHANNELS NCCL_MIN_CTAS NCCL_MAX_CTAS
    NCCL_MIN_P2P_NCHANNELS NCCL_MAX_P2P_NCHANNELS NCCL_NCHANNELS_PER_NET_PEER
    """: _integer(1, 64),
    "NCCL_IB_QPS_PER_CONNECTION": _integer(1, 128),
    "OMP_NUM_THREADS MKL_NUM_THREADS OPENBLAS_NUM_THREADS": _integer(1, 4096),
    "TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC": _integer(1, 10**6),
    "TORCH_NCCL_COORD_CHECK_MILSEC TORCH_NCCL_WAIT_TIMEOUT_DUMP_MILSEC": _integer(1, 10**9),
    "OMP_DYNAMIC": _one_of("true false"),
    "OMP_PROC_BIND": _one_of("true false close spread master primary"),
    "OMP_PLACES": _like(
        r"(threads|cores|sockets|ll_caches|numa_domains)(\([0-9]{1,4}\))?",
        "threads / cores / sockets / ll_caches / numa_domains, with an optional (count)",
    ),
    "OMP_SCHEDULE": _like(
        "(static|dynamic|guided|auto)(,[0-9]{1,9})?",
        "static / dynamic / guided / auto, with an optional ,chunk",
    ),
    "OMP_STACKSIZE": _like("[0-9]{1,9}[BKMG]?", "a number, with an optional B, K, M or G"),
    "OMP_WAIT_POLICY": _one_of("active passive"),
    "KMP_BLOCKTIME": _like("[0-9]{1,9}|infinite", "milliseconds, or infinite"),
    "GOMP_SPINCOUNT": _like("[0-9]{1,12}|infinite", "a number, or infinite"),
    "MKL_DYNAMIC": _one_of("TRUE FALSE"),
    "MKL_CBWR": _one_of("AUTO COMPATIBLE AVX2 AVX512 AVX2,STRICT AVX512,STRICT"),
    # Only names that torch registers, because torch imports any other name as a module.
    "TORCH_LOGS": _several(
        """
        all aot autograd c10d ddp distributed dtensor dynamic dynamo export fsdp inductor pp torch
        aot_graphs aot_joint_graph autotuning benchmarking bytecode compiled_autograd cudagraphs
        ddp_graphs fusion graph graph_breaks graph_code graph_sizes guards kernel_code output_code
        overlap perf_hints post_grad_graphs pre_grad_graphs recompiles recompiles_verbose schedule
        sym_node trace_bytecode trace_call trace_source verbose_guards
        """,
        sign="+-",
    ),
    "TORCH_CPP_LOG_LEVEL": _one_of("INFO WARNING ERROR FATAL"),
    "TORCH_DISTRIBUTED_DEBUG": _one_of("OFF INFO DETAIL"),
    "PYTORCH_ALLOC_CONF PYTORCH_CUDA_ALLOC_CONF": _settings(
        backend="native|cudaMallocAsync",
        expandable_segments=_SWITCH,
        garbage_collection_threshold=r"0?\.[0-9]{1,9}",
        graph_capture_record_stream_reuse=_SWITCH,
        max_non_split_rounding_mb="[0-9]{1,9}",
        max_split_size_mb="[0-9]{1,9}",
        per_process_memory_fraction=r"0?\.[0-9]{1,9}|1(\.0)?",
        pinned_num_register_threads="[0-9]{1,4}",
        pinned_use_background_threads=_SWITCH,
        pinned_use_cuda_host_register=_SWITCH,
        release_lock_on_cudamalloc=_SWITCH,
        roundup_power2_divisions=rf"[0-9]{{1,9}}|\[{_DIVISION}(,{_DIVISION}){{0,31}}\]",
    ),
    "CUBLAS_WORKSPACE_CONFIG": _like("(:[0-9]{1,9}:[0-9]{1,4}){1,8}", "sizes such as :4096:8"),
    "CUDA_MODULE_LOADING": _one_of("LAZY EAGER"),
}
"""Legal values by variable. A key may hold several names of variables, separated by spaces."""
ALLOWED = {name: kind for names, kind in _KINDS.items() for name in names.split()}
"""Variables that a job without its own code may set, with their legal values. They tune and trace
NCCL, gloo, threads, CUDA, and torch's logs and allocators. No legal value names a file, program,
library, plugin or host."""
