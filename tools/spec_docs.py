"""Generates the pages of the job spec, with a table per section, from the JSON Schema."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, get_args

from trainyard.base.model_base import SpecModel, description_of
from trainyard.spec.environment import ALLOWED
from trainyard.spec.job import TRAINER_SECTIONS, JobSpec
from trainyard.spec.sections.program import (
    CodeSection,
    EnvironmentSection,
    ProgramLayout,
    ProgramSection,
)

HEAD = """# The job spec

A job spec is one TOML, YAML or JSON document that describes a job. Every field except
`program.command` has a default, so an empty document is a legal job.

```toml
name = "first"

[training]
steps = 200

[resources]
world_size = 2
```

```
trainyard submit job.toml --set training.steps=400   # a field by its dotted path
```

Unknown fields, wrong types, NaN and infinity are refused. This page lists the fields of every job;
those of the built-in trainer are on [a page of their own](spec-trainer.md).
"""

TRAINER_HEAD = """# The job spec of the built-in trainer

These sections of a [job spec](spec.md) describe model, data and training. A job that runs a
[program](programs.md) has none of them.

```toml
[model]
family = "llama3"
size = "debug"

[parallelism]
dp_shard = 2
```
"""

ENVIRONMENT_HEAD = """# Environment variables of a job

`env` of a spec sets environment variables of the job's ranks:

```toml
[env]
NCCL_DEBUG = "INFO"
```

By default a job has no code of its own. A job without code may set only the variables in the table
below, each to a legal value. These variables tune and trace NCCL, gloo, threads, torch's logs and
allocators, and CUDA. No variable of the table names a file, a program, a library, a plugin or a
host. Other variables could make a program run a command, load a library or write a file. For
example, `PYTHONWARNINGS` imports a module, and together with `BROWSER` it starts a shell.

If `TRAINYARD_ALLOW_CODE=true` is set for the server and its workers, every variable is legal except
those that the launcher sets (`RANK`, `CUDA_VISIBLE_DEVICES`, `PYTHONPATH`, `LD_PRELOAD`,
`TRAINYARD_*`, `AWS_*`, ...). Ranks inherit the environment of their worker, so the operator of a
node can set the variables outside of the table for all jobs of the node.

Ranks do not inherit the variables of another launch. A worker may therefore run among the ranks of
an outer job, or in an allocation. The variables that ranks do not inherit are `RANK`, `WORLD_SIZE`,
`NODE_RANK`, `NNODES`, `NUM_NODES`, `NPROC_PER_NODE`, `CROSS_*`, `LOCAL_*`, `GROUP_*`, `ROLE_*`,
`MASTER_*`, `TORCHELASTIC_*`, `PET_*`, `ACCELERATE_*`, `FSDP_*`, the variables of Slurm, LSF, PBS,
Flux, MPI, Horovod, SageMaker and Azure Batch, `TF_CONFIG`, `NCCL_COMM_ID`, and the variables by
which JAX finds its processes. If the launcher does not set one of these variables, a job can still
set it.

The server refuses a new job, a plan, a fork or a resume if its `env` has an illegal variable or
value. The supervisor of a node checks the spec again before it starts a process. A job that was
stored under a wider rule stays readable. When this job is due to start, it ends as `failed` with
the reason `not_allowed`, which is never retried.
"""

TABLE_HEAD = """| field | type | default | unit | meaning |
|---|---|---|---|---|"""

BOUNDS = {"minimum": "≥", "exclusiveMinimum": ">", "maximum": "≤", "exclusiveMaximum": "<"}

Schema = Mapping[str, Any]
REQUIRED = object()
"""Marker of a field without a default."""


def job_schema_text() -> str:
    """Return the JSON Schema of the job spec, as the text of a file."""
    return json.dumps(JobSpec.model_json_schema(), indent=2, ensure_ascii=False) + "\n"


def spec_markdown() -> str:
    """Return the page with the fields of every job: type, default, unit and help."""
    schema = JobSpec.model_json_schema()
    defaults = JobSpec().model_dump(mode="json")
    sections = _sections()
    own = [name for name in JobSpec.model_fields if name not in sections and name != "program"]
    tables = [
        "## The job itself",
        _table(schema, own, defaults=defaults, definitions=schema["$defs"]),
    ]
    tables += _program_tables(schema["$defs"])
    tables += _section_tables(name for name in sections if name not in TRAINER_SECTIONS)
    return "\n\n".join([HEAD.strip(), *tables]) + "\n"


def spec_trainer_markdown() -> str:
    """Return the page with the fields of the trainer's sections: type, default, unit and help."""
    tables = _section_tables(name for name in _sections() if name in TRAINER_SECTIONS)
    return "\n\n".join([TRAINER_HEAD.strip(), *tables]) + "\n"


def _sections() -> Mapping[str, type[SpecModel]]:
    """Return the sections of the spec by name, except `program`."""
    return {
        name: field.annotation
        for name, field in JobSpec.model_fields.items()
        if isinstance(field.annotation, type) and issubclass(field.annotation, SpecModel)
    }


def _section_tables(names: Iterable[str]) -> Iterator[str]:
    """Yield heading, help and table of each section."""
    definitions = JobSpec.model_json_schema()["$defs"]
    defaults = JobSpec().model_dump(mode="json")
    for name in names:
        section = _sections()[name]
        inner = _optional_sections(section)
        yield f"## `{name}`"
        yield _one_line(section.__doc__ or "")
        yield _table(
            definitions[section.__name__],
            [field for field in section.model_fields if field not in inner],
            defaults=defaults[name],
            definitions=definitions,
            path=f"{name}.",
        )
        for field, kind in inner.items():
            yield f"### `{name}.{field}`"
            yield _one_line(description_of(section, field))
            yield _table(
                definitions[kind.__name__],
                kind.model_fields,
                defaults=_defaults(kind),
                definitions=definitions,
                path=f"{name}.{field}.",
            )


def _optional_sections(section: type[SpecModel]) -> dict[str, type[SpecModel]]:
    """Return the fields of a section that are sections or absent."""
    return {
        name: kind
        for name, field in section.model_fields.items()
        for kind in get_args(field.annotation)
        if isinstance(kind, type) and issubclass(kind, SpecModel)
    }


def _program_tables(definitions: Schema) -> Iterator[str]:
    """Yield heading, help and table of the section `program` with the sections inside it."""
    yield "## `program`"
    yield (
        "A program of the user's own instead of the built-in trainer ([how](programs.md)). It has "
        "no sections of the trainer: "
        f"{', '.join(f'`{name}`' for name in TRAINER_SECTIONS)}."
    )
    inner: dict[str, type[SpecModel]] = {
        "layouts[]": ProgramLayout,
        "code": CodeSection,
        "environment": EnvironmentSection,
    }
    whole: dict[str, type[SpecModel]] = {"": ProgramSection}
    rows = []
    for path, section in (whole | inner).items():
        names = [name for name in section.model_fields if path or name not in inner]
        rows.append(
            _table(
                definitions[section.__name__],
                names,
                defaults=_defaults(section),
                definitions=definitions,
                path=f"program.{path}." if path else "program.",
            )
        )
    first, *others = rows
    yield "\n".join([first, *(table.removeprefix(f"{TABLE_HEAD}\n") for table in others)])


def _defaults(section: type[SpecModel]) -> dict[str, object]:
    """Return the default of each field; `REQUIRED` for a field without a default."""
    found: dict[str, object] = {}
    for name, field in section.model_fields.items():
        default = field.get_default(call_default_factory=True, validated_data={})
        found[name] = REQUIRED if field.is_required() else default
    return found


def environment_markdown() -> str:
    """Return the page with every variable that a job without its own code may set."""
    rows = [f"| `{name}` | {_cell(ALLOWED[name].legal)} |" for name in sorted(ALLOWED)]
    return "\n".join(
        [ENVIRONMENT_HEAD.strip(), "", "| variable | legal values |", "|---|---|", *rows, ""]
    )


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


def _table(
    schema: Schema,
    names: Iterable[str],
    *,
    defaults: Mapping[str, object],
    definitions: Schema,
    path: str = "",
) -> str:
    rows = [TABLE_HEAD]
    for name in names:
        shown = schema["properties"][name]
        default = defaults[name]
        cells = (
            f"`{path}{name}`",
            describe_type(shown, definitions),
            _default_words(default),
            _unit(shown),
            _one_line(shown["description"]),
        )
        rows.append(f"| {' | '.join(cells)} |")
    return "\n".join(rows)


def _default_words(default: object) -> str:
    if default is REQUIRED:
        return "required"
    return "absent" if default is None else f"`{json.dumps(default)}`"


def describe_type(schema: Schema, definitions: Schema) -> str:
    """Return the type of a JSON Schema in words, except null, which the default `absent` implies.

    Args:
        schema: schema of one field.
        definitions: the `$defs` to which it may refer.
    """
    if choices := schema.get("anyOf", schema.get("oneOf")):
        kinds = [kind for kind in choices if kind.get("type") != "null"]
        return " or ".join(describe_type(kind, definitions) for kind in kinds)
    if "$ref" in schema:
        return describe_type(definitions[schema["$ref"].rpartition("/")[2]], definitions)
    values = schema.get("enum", [schema["const"]] if "const" in schema else [])
    if values:
        return " / ".join(f"`{value}`" for value in values)
    kind = str(schema["type"])
    if kind == "array":
        return f"list of: {describe_type(schema['items'], definitions)}"
    if "properties" in schema:  # the table of the section has a row for each field
        return "table"
    if kind == "object":
        of_names = schema.get("patternProperties", {})  # if the names have a pattern
        values = next(iter(of_names.values()), None) or schema["additionalProperties"]
        return f"table of: {describe_type(values, definitions)}"
    return ", ".join([kind, *_bounds(schema)])


def _bounds(schema: Schema) -> Iterator[str]:
    for key, sign in BOUNDS.items():
        # A field may tighten its type's bound, which then also remains in the schema.
        if key in schema and not (key == "maximum" and "exclusiveMaximum" in schema):
            yield f"{sign} {_number(schema[key])}"
    if "maxLength" in schema:
        yield f"up to {schema['maxLength']} characters"


def _number(value: float) -> str:
    if value in (10**exponent for exponent in range(6, 19)):
        return f"10^{len(str(int(value))) - 1}"
    return "2^63" if value == 2**63 else f"{value:,}"


def _unit(schema: Schema) -> str:
    kinds = [schema, *schema.get("anyOf", ())]
    return next((kind["unit"] for kind in kinds if "unit" in kind), "")


def _one_line(text: str) -> str:
    return " ".join(text.split())
