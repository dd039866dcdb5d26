"""At most three positional parameters; each exception has its reason."""

import ast
import re
from collections.abc import Iterator
from fnmatch import fnmatch

import pytest

from tests.test_house_rules import ROOT, parse, python_files

MAX_POSITIONAL = 3
FOLDERS = (
    "server", "worker", "trainer", "library", "provisioner", "embedded", "tools", "benchmarks",
)  # fmt: skip

# Their parameters are those of a route or of a kernel.
DECORATED = re.compile(r"(\w*router\.\w+\(|triton\.jit)")
CALLED_BY_PYTHON = re.compile(r"__(?!init__|new__)\w+__")

TYPER = "Typer reads its options from the signature, and passes them by keyword"
TORCH = "torch dictates its signature"
ELSEWHERE = "overrides a method of another library"
STARRED = "its arguments come as a tuple"
VALUE = "passed as a value, and called by position"
WRAPPED = "a test wraps it with *arguments"

# (file, function), each a pattern: the reason why it takes more.
EXCEPTIONS = {
    ("library/trainyard/cli/commands/*", "[a-z]*"): TYPER,
    ("benchmarks/against_torchtitan.py", "_train"): STARRED,
    ("benchmarks/checkpoint_plans/one_rank_plan.py", "plan_cost"): VALUE,
    ("benchmarks/checkpoint_plans/one_rank_plan.py", "resharding_cost"): VALUE,
    ("benchmarks/checkpoint_plans/save_stall.py", "save_stall"): VALUE,
    ("benchmarks/checkpoints.py", "run_rank"): VALUE,
    ("benchmarks/control_plane/stream_clients.py", "listen"): VALUE,
    ("benchmarks/planner_accuracy/measure.py", "_run"): VALUE,
    ("library/trainyard/adapters/hugging_face.py", "ExactTrainer.compute_loss"): ELSEWHERE,
    ("library/trainyard/adapters/hugging_face.py", "ExactTrainer.evaluation_loop"): ELSEWHERE,
    ("library/trainyard/adapters/hugging_face.py", "_Steps.on_log"): ELSEWHERE,
    ("library/trainyard/adapters/lightning.py", "ExactCallback.__init__"): WRAPPED,
    ("library/trainyard/adapters/lightning.py", "ExactCallback.on_train_batch_end"): TORCH,
    ("library/trainyard/client/past_runs/mlflow_store.py", "_authorized"): VALUE,
    ("library/trainyard/client/past_runs/mlflow_store.py", "_describe"): STARRED,
    ("library/trainyard/run/artifacts/histogram_bins.py", "_histogram"): STARRED,
    (
        "library/trainyard/run/checkpoints/program_save.py",
        "_OneSave.__init__",
    ): "a value takes the place of its parameters first",
    ("library/trainyard/run/other_tools/wandb_media.py", "Table.__init__"): ELSEWHERE,
    (
        "server/cluster/nodes/capacity.py",
        "_offer",
    ): "a cache takes calls by position and by keyword for two",
    ("server/cluster/supply/changes.py", "store_requests"): WRAPPED,
    ("server/cluster/supply/changes.py", "leave"): VALUE,
    ("server/cluster/supply/changes.py", "end_requests"): VALUE,
    ("server/jobs/checkpoints/catalog.py", "apply_outcome"): VALUE,
    ("server/scheduler/elastic/jobs.py", "record_change"): VALUE,
    (
        "server/core/database/upsert.py",
        "_replacement",
    ): "a cache takes calls by position and by keyword for two",
    ("server/jobs/attempts/finish.py", "end_nodes"): WRAPPED,
    (
        "server/jobs/attempts/finish.py",
        "_follow_up",
    ): "a value takes the place of its parameters first",
    (
        "server/jobs/attempts/finish.py",
        "_move_job",
    ): "a value takes the place of its parameters first",
    (
        "server/jobs/jobs/endpoints.py",
        "job_filter",
    ): "FastAPI reads its parameters from the signature",
    ("server/scheduler/elastic/jobs.py", "can_continue"): WRAPPED,
    ("server/telemetry/metrics/continuity/first_step.py", "_other_loss"): STARRED,
    ("server/telemetry/metrics/lineage_values.py", "measure"): VALUE,
    ("server/telemetry/metrics/points.py", "unpack"): STARRED,
    ("tools/gpu_check/staged_group.py", "StagedGroup.__init__"): TORCH,
    ("tools/gpu_check/stages/curves.py", "_Waits._warned"): STARRED,
    ("trainer/loop/network_check.py", "_reduce"): WRAPPED,
    ("trainer/loop/train.py", "Loop.__init__"): "a value takes the place of its parameters first",
    ("trainer/models/attention.py", "CausalAttention.forward"): TORCH,
    ("trainer/models/attention.py", "Attention.forward"): TORCH,
    ("trainer/models/decoder.py", "Block.forward"): TORCH,
    ("trainer/models/documents.py", "attend_within_documents"): WRAPPED,
    ("trainer/models/documents.py", "block_mask.counts"): VALUE,
    ("trainer/models/head.py", "_ChunkedLoss.forward"): TORCH,
    ("trainer/operations/load_check.py", "_load_share"): VALUE,
    ("trainer/parallel/cp.py", "apply"): VALUE,
    ("trainer/parallel/cp.py", "AllGatherAttention.forward"): TORCH,
    ("trainer/parallel/cp.py", "UlyssesAttention.forward"): TORCH,
    ("trainer/parallel/own_model.py", "_LossOfRows.forward"): TORCH,
    ("trainer/parallel/tp.py", "apply"): VALUE,
}

Finding = tuple[int, str, int]  # line, function, number of positional parameters


def test_no_function_takes_more_than_three_positional_parameters() -> None:
    """And every exception is still needed."""
    found = [
        (path.relative_to(ROOT).as_posix(), *finding)
        for folder in FOLDERS
        for path in python_files(folder)
        for finding in long_signatures(parse(path))
    ]
    used = {key: [(n, f) for n, _, f, _ in found if _matches(key, n, f)] for key in EXCEPTIONS}
    excepted = {each for matches in used.values() for each in matches}
    broken = [
        f"{name}:{line}: {function} has {number}"
        for name, line, function, number in found
        if (name, function) not in excepted
    ]
    rule = f"at most {MAX_POSITIONAL} positional parameters; write `*,` before the third:"
    assert not broken, "\n".join([rule, *broken])
    unused = [key for key, matches in used.items() if not matches]
    assert not unused, f"exceptions that match nothing: {unused}"


def _matches(key: tuple[str, str], name: str, function: str) -> bool:
    file, part = key
    return fnmatch(name, file) and fnmatch(function, part)


def long_signatures(module: ast.Module) -> Iterator[Finding]:
    """Functions of `module` with too many positional parameters, `self` and `cls` not counted."""
    yield from _below(module, prefix="", in_class=False)


def _below(parent: ast.AST, *, prefix: str, in_class: bool) -> Iterator[Finding]:
    for node in ast.iter_child_nodes(parent):
        if isinstance(node, ast.ClassDef):
            yield from _below(node, prefix=f"{prefix}{node.name}.", in_class=True)
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            decorators = [ast.unparse(each) for each in node.decorator_list]
            number = len(node.args.posonlyargs) + len(node.args.args)
            number -= in_class and "staticmethod" not in decorators
            free = any(map(DECORATED.match, decorators)) or CALLED_BY_PYTHON.fullmatch(node.name)
            if number > MAX_POSITIONAL and not free:
                yield node.lineno, prefix + node.name, number
            yield from _below(node, prefix=f"{prefix}{node.name}.", in_class=False)
        else:
            yield from _below(node, prefix=prefix, in_class=in_class)


@pytest.mark.parametrize(
    ("source", "functions"),
    [
        ("def f(a, b, c, d): ...\nasync def g(a, b, c, /, d=1): ...", ["f", "g"]),
        ("def f(a, b, c): ...\ndef g(a, b, *, c, d): ...\ndef h(*a, b, c, d, e): ...", []),
        ("class C:\n    def __init__(self, a, b, c, d): ...", ["C.__init__"]),
        ("class C:\n    def f(self, a, b, c): ...\n    def __exit__(self, a, b, c, d): ...", []),
        ("class C:\n    @staticmethod\n    def f(a, b, c, d): ...", ["C.f"]),
        ("@router.get('')\ndef f(a, b, c, d): ...\n@cache\ndef g(a, b, c, d): ...", ["g"]),
        ("def f():\n    if x:\n        def g(a, b, c, d): ...", ["f.g"]),
    ],
)
def test_the_detector_finds_what_it_names(source: str, functions: list[str]) -> None:
    assert [function for _, function, _ in long_signatures(ast.parse(source))] == functions
