"""Environment variables of a job: reserved names, and the allow-list without code of the job."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass

from trainyard.base.problems import Problem, pointer_to
from trainyard.base.redaction import MASK, is_masked

ENV_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,127}")
RESERVED_ENV = re.compile(
    r"(RANK|LOCAL_RANK|WORLD_SIZE|LOCAL_WORLD_SIZE|MASTER_ADDR|MASTER_PORT|GROUP_RANK"
    r"|CUDA_VISIBLE_DEVICES|PYTHON(PATH|HOME|STARTUP)|LD_(PRELOAD|LIBRARY_PATH|AUDIT)|PATH"
    r"|TORCHELASTIC_.*|TRAINYARD_.*|AWS_.*|BOTO_.*|FSSPEC_.*)"
)
"""Names that the launcher sets or reserves for the node; no job may set them."""


@dataclass(frozen=True)
class Variable:
    """The legal values of one variable."""

    legal: str
    """The legal values in words."""
    accepts: Callable[[str], bool]
    """Whether a value is legal."""


def check_environment_names(env: Mapping[str, str]) -> None:
    """Reject malformed and reserved names of variables.

    Raises:
        ValueError: naming the variable.
    """
    for name in env:
        if not ENV_NAME.fullmatch(name):
            raise ValueError(f"{name!r} is no name of an environment variable")
        if RESERVED_ENV.fullmatch(name):
            raise ValueError(f"{name} is set by the launcher and cannot be chosen")


def is_allowed(name: str, value: str) -> bool:
    """Return whether a job without code of its own may set a variable to a value."""
    variable = ALLOWED.get(name)
    return variable is not None and variable.accepts(value)


def environment_problems(env: Mapping[str, str]) -> list[Problem]:
    """Return the variables of an `env` that might run, load or contact what a job chose.

    A deny-list cannot be complete (`PYTHONWARNINGS` with `BROWSER` starts a shell), so only names
    of the allow-list pass, each with a check of its value. Values may be secrets and are not shown.
    """
    problems: list[Problem] = []
    shown = False
    for name, value in env.items():
        variable = ALLOWED.get(name)
        if variable is None:
            detail = f"{name} is legal only where jobs may bring code (TRAINYARD_ALLOW_CODE)"
            if not shown:  # the list is long: once
                detail += f"; legal without: {allowed_names()}"
                shown = True
        elif variable.accepts(value):
            continue
        else:
            detail = f"the value of {name} is not legal; legal: {variable.legal}"
        problems.append(Problem(pointer=f"/env/{name}", detail=detail))
    return problems


def masked_problems(document: object, *path: str | int) -> list[Problem]:
    """Return the masks in a JSON document; a mask is shown in views and is no stored value."""
    if isinstance(document, str):
        detail = f"{MASK!r} masks what is not shown; give the value itself, or leave it out"
        return [Problem(pointer=pointer_to(path), detail=detail)] if is_masked(document) else []
    items: list[tuple[str | int, object]] = []
    if isinstance(document, Mapping):
        items = [(str(name), value) for name, value in document.items()]
    elif isinstance(document, list | tuple):
        items = list(enumerate(document))
    return [problem for part, value in items for problem in masked_problems(value, *path, part)]


def allowed_names() -> str:
    """Return the names of the allow-list, grouped by the first part that several have in common."""
    groups = itertools.groupby(sorted(ALLOWED), key=lambda name: name.split("_")[0])
    words = []
    for first, group in groups:
        names = [name.removeprefix(f"{first}_") for name in group]
        words.append(f"{first}_{{{','.join(names)}}}" if len(names) > 1 else f"{first}_{names[0]}")
    return " ".join(words)


# ---- kinds of values ----------------------------------------------------------------------------


def _one_of(*values: str) -> Variable:
    return Variable(" / ".join(values), frozenset(values).__contains__)


def _integer(low: int, high: int) -> Variable:
    def accepts(value: str) -> bool:
        return bool(re.fullmatch(r"-?[0-9]{1,18}", value)) and low <= int(value) <= high

    return Variable(f"an integer from {low} to {high}", accepts)


def _like(pattern: str, legal: str) -> Variable:
    compiled = re.compile(pattern)
    return Variable(legal, lambda value: compiled.fullmatch(value) is not None)


def _several(values: Collection[str], *, before: str = "", sign: str = "") -> Variable:
    """Values separated by commas, after an optional sign: of the list, and of each value."""

    def accepts(value: str) -> bool:
        listed = value[1:] if before and value.startswith(before) else value
        words = listed.split(",")
        return all(
            (word[1:] if sign and word.startswith(tuple(sign)) else word) in values
            for word in words
        )

    first = f"{before!r} and then " if before else ""
    each = f", each after {' or '.join(map(repr, sign))} or nothing" if sign else ""
    optional = "optionally " if before else ""
    return Variable(f"{optional}{first}{', '.join(sorted(values))}, by commas{each}", accepts)


def _settings(**values: str) -> Variable:
    """`name:value` separated by commas, with a pattern for the value of each name."""
    patterns = {name: re.compile(pattern) for name, pattern in values.items()}

    def accepts(value: str) -> bool:
        # A list in brackets holds commas of its own.
        pairs = (pair.partition(":") for pair in re.split(r",(?![^\[]*\])", value))
        return all(
            name in patterns and patterns[name].fullmatch(given) is not None
            for name, _, given in pairs
        )

    return Variable(f"name:value by commas, with the names {', '.join(sorted(values))}", accepts)


FLAG = _one_of("0", "1")
_SWITCH = "True|False"
_DIVISION = "(>|[0-9]{1,9}):[0-9]{1,9}"
_DISTANCE = _one_of("LOC", "NVL", "PIX", "PXB", "PHB", "SYS", "0", "1", "2", "3", "4", "5")
_THREADS = _integer(1, 4096)
_BYTES = _integer(0, 2**40)
_SECONDS = _integer(1, 10**6)
_MILLISECONDS = _integer(1, 10**9)
# An interface has at most 15 characters, none of them a slash: it can name no file.
_INTERFACES = _like(
    r"[\^=]{0,2}[A-Za-z0-9_.-]{1,15}(,[A-Za-z0-9_.-]{1,15}){0,63}",
    "network interfaces by commas, optionally after '^' or '='",
)
_ADAPTERS = _like(
    r"[\^=]{0,2}[A-Za-z0-9_.-]{1,32}(:[0-9]{1,3})?(,[A-Za-z0-9_.-]{1,32}(:[0-9]{1,3})?){0,63}",
    "adapters with an optional port by commas, as in mlx5_0:1, optionally after '^' or '='",
)
_ALLOCATOR = _settings(
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
)
# Names that torch registers, and no others: for any other one torch imports the module so named.
_LOGS = _several(
    (
        *("all", "aot", "autograd", "c10d", "ddp", "distributed", "dtensor", "dynamic", "dynamo"),
        *("export", "fsdp", "inductor", "pp", "torch", "aot_graphs", "aot_joint_graph"),
        *("autotuning", "benchmarking", "bytecode", "compiled_autograd", "cudagraphs"),
        *("ddp_graphs", "fusion", "graph", "graph_breaks", "graph_code", "graph_sizes", "guards"),
        *("kernel_code", "output_code", "overlap", "perf_hints", "post_grad_graphs"),
        *("pre_grad_graphs", "recompiles", "recompiles_verbose", "schedule", "sym_node"),
        *("trace_bytecode", "trace_call", "trace_source", "verbose_guards"),
    ),
    sign="+-",
)

ALLOWED: dict[str, Variable] = {
    # Output of NCCL goes to the log of the rank; NCCL_DEBUG_FILE would name another file.
    "NCCL_DEBUG": _one_of("VERSION", "WARN", "INFO", "ABORT", "TRACE"),
    "NCCL_DEBUG_SUBSYS": _several(
        (
            *("INIT", "COLL", "P2P", "SHM", "NET", "GRAPH", "TUNING", "ENV", "ALLOC", "CALL"),
            *("PROXY", "NVLS", "BOOTSTRAP", "REG", "PROFILE", "RAS", "ALL"),
        ),
        before="^",
    ),
    "NCCL_ALGO": _several(
        ("Tree", "Ring", "CollnetDirect", "CollnetChain", "NVLS", "NVLSTree", "PAT"), before="^"
    ),
    "NCCL_PROTO": _several(("LL", "LL128", "Simple"), before="^"),
    "NCCL_SOCKET_IFNAME": _INTERFACES,
    "NCCL_SOCKET_FAMILY": _one_of("AF_INET", "AF_INET6"),
    "NCCL_SOCKET_NTHREADS": _integer(1, 16),
    "NCCL_NSOCKS_PERTHREAD": _integer(1, 64),
    "NCCL_NTHREADS": _one_of("64", "128", "256", "512"),
    "NCCL_MIN_NCHANNELS": _integer(1, 64),
    "NCCL_MAX_NCHANNELS": _integer(1, 64),
    "NCCL_MIN_CTAS": _integer(1, 64),
    "NCCL_MAX_CTAS": _integer(1, 64),
    "NCCL_MIN_P2P_NCHANNELS": _integer(1, 64),
    "NCCL_MAX_P2P_NCHANNELS": _integer(1, 64),
    "NCCL_NCHANNELS_PER_NET_PEER": _integer(1, 64),
    "NCCL_BUFFSIZE": _BYTES,
    "NCCL_P2P_NET_CHUNKSIZE": _BYTES,
    "NCCL_LL_BUFFSIZE": _BYTES,
    "NCCL_LL128_BUFFSIZE": _BYTES,
    "NCCL_P2P_DISABLE": FLAG,
    "NCCL_P2P_LEVEL": _DISTANCE,
    "NCCL_P2P_DIRECT_DISABLE": FLAG,
    "NCCL_P2P_USE_CUDA_MEMCPY": FLAG,
    "NCCL_PXN_DISABLE": FLAG,
    "NCCL_SHM_DISABLE": FLAG,
    "NCCL_NET_DISABLE_INTRA": FLAG,
    "NCCL_NET_GDR_LEVEL": _DISTANCE,
    "NCCL_NET_GDR_READ": FLAG,
    "NCCL_NET_SHARED_BUFFERS": FLAG,
    "NCCL_CROSS_NIC": _integer(0, 2),
    "NCCL_IB_DISABLE": FLAG,
    "NCCL_IB_HCA": _ADAPTERS,
    "NCCL_IB_TIMEOUT": _integer(1, 31),
    "NCCL_IB_RETRY_CNT": _integer(0, 7),
    "NCCL_IB_GID_INDEX": _integer(-1, 255),
    "NCCL_IB_SL": _integer(0, 15),
    "NCCL_IB_TC": _integer(0, 255),
    "NCCL_IB_QPS_PER_CONNECTION": _integer(1, 128),
    "NCCL_IB_SPLIT_DATA_ON_QPS": FLAG,
    "NCCL_IB_PCI_RELAXED_ORDERING": _integer(0, 2),
    "NCCL_IB_ADAPTIVE_ROUTING": FLAG,
    "NCCL_IB_AR_THRESHOLD": _BYTES,
    "NCCL_IB_MERGE_NICS": FLAG,
    "NCCL_CUMEM_ENABLE": FLAG,
    "NCCL_CUMEM_HOST_ENABLE": FLAG,
    "NCCL_DMABUF_ENABLE": FLAG,
    "NCCL_GRAPH_MIXING_SUPPORT": FLAG,
    "NCCL_GRAPH_REGISTER": FLAG,
    "NCCL_LOCAL_REGISTER": FLAG,
    "NCCL_IGNORE_CPU_AFFINITY": FLAG,
    "NCCL_LAUNCH_MODE": _one_of("PARALLEL", "GROUP"),
    "NCCL_MNNVL_ENABLE": _integer(0, 2),
    "NCCL_NVLS_ENABLE": _integer(0, 2),
    "NCCL_SET_THREAD_NAME": FLAG,
    "GLOO_SOCKET_IFNAME": _INTERFACES,
    "TORCH_GLOO_LAZY_INIT": FLAG,
    "OMP_NUM_THREADS": _THREADS,
    "OMP_DYNAMIC": _one_of("true", "false"),
    "OMP_PROC_BIND": _one_of("true", "false", "close", "spread", "master", "primary"),
    "OMP_PLACES": _like(
        r"(threads|cores|sockets|ll_caches|numa_domains)(\([0-9]{1,4}\))?",
        "threads / cores / sockets / ll_caches / numa_domains, with an optional (count)",
    ),
    "OMP_SCHEDULE": _like(
        "(static|dynamic|guided|auto)(,[0-9]{1,9})?",
        "static / dynamic / guided / auto, with an optional ,chunk",
    ),
    "OMP_STACKSIZE": _like("[0-9]{1,9}[BKMG]?", "a number, with an optional B, K, M or G"),
    "OMP_WAIT_POLICY": _one_of("active", "passive"),
    "KMP_BLOCKTIME": _like("[0-9]{1,9}|infinite", "milliseconds, or infinite"),
    "GOMP_SPINCOUNT": _like("[0-9]{1,12}|infinite", "a number, or infinite"),
    "MKL_NUM_THREADS": _THREADS,
    "MKL_DYNAMIC": _one_of("TRUE", "FALSE"),
    "MKL_CBWR": _one_of("AUTO", "COMPATIBLE", "AVX2", "AVX512", "AVX2,STRICT", "AVX512,STRICT"),
    "OPENBLAS_NUM_THREADS": _THREADS,
    "TORCH_LOGS": _LOGS,
    "TORCH_CPP_LOG_LEVEL": _one_of("INFO", "WARNING", "ERROR", "FATAL"),
    "TORCH_DISTRIBUTED_DEBUG": _one_of("OFF", "INFO", "DETAIL"),
    "TORCH_SHOW_CPP_STACKTRACES": FLAG,
    "TORCHDYNAMO_VERBOSE": FLAG,
    "TORCH_FR_BUFFER_SIZE": _integer(0, 10**7),
    "TORCH_NCCL_ASYNC_ERROR_HANDLING": _integer(0, 3),
    "TORCH_NCCL_AVOID_RECORD_STREAMS": FLAG,
    "TORCH_NCCL_BLOCKING_WAIT": FLAG,
    "TORCH_NCCL_COORD_CHECK_MILSEC": _MILLISECONDS,
    "TORCH_NCCL_CUDA_EVENT_CACHE": FLAG,
    "TORCH_NCCL_DESYNC_DEBUG": FLAG,
    "TORCH_NCCL_DUMP_ON_TIMEOUT": FLAG,
    "TORCH_NCCL_ENABLE_MONITORING": FLAG,
    "TORCH_NCCL_ENABLE_TIMING": FLAG,
    "TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC": _SECONDS,
    "TORCH_NCCL_HIGH_PRIORITY": FLAG,
    "TORCH_NCCL_NAN_CHECK": FLAG,
    "TORCH_NCCL_TRACE_BUFFER_SIZE": _integer(0, 10**7),
    "TORCH_NCCL_WAIT_TIMEOUT_DUMP_MILSEC": _MILLISECONDS,
    "PYTORCH_ALLOC_CONF": _ALLOCATOR,
    "PYTORCH_CUDA_ALLOC_CONF": _ALLOCATOR,
    "PYTORCH_NO_CUDA_MEMORY_CACHING": FLAG,
    "MALLOC_ARENA_MAX": _integer(0, 4096),
    "MALLOC_MMAP_THRESHOLD_": _BYTES,
    "MALLOC_TRIM_THRESHOLD_": _BYTES,
    "MEMORY_HISTORY": _integer(0, 10**9),
    "CUBLAS_WORKSPACE_CONFIG": _like("(:[0-9]{1,9}:[0-9]{1,4}){1,8}", "sizes such as :4096:8"),
    "CUDA_CACHE_DISABLE": FLAG,
    "CUDA_CACHE_MAXSIZE": _BYTES,
    "CUDA_DEVICE_MAX_CONNECTIONS": _integer(1, 32),
    "CUDA_FORCE_PTX_JIT": FLAG,
    "CUDA_LAUNCH_BLOCKING": FLAG,
    "CUDA_MODULE_LOADING": _one_of("LAZY", "EAGER"),
    "NVIDIA_TF32_OVERRIDE": FLAG,
    "TORCH_USE_CUDA_DSA": FLAG,
}
"""Variables that a job without code of its own may set: they tune and trace NCCL, gloo, threads,
torch's logs and allocators, and CUDA. None names a file, program, library, plugin or host."""
