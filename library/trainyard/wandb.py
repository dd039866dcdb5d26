"""A replacement for `import wandb`: a script's logs become metrics and artifacts of its job.

Only the standard library is imported. A call that this module does not support warns once and does
nothing; if a script cannot continue without the call's result, the call raises an error. The table
of calls is in docs/wandb.md.
"""

from __future__ import annotations

import atexit
import logging
from collections.abc import Iterable, Iterator, Mapping
from itertools import chain
from pathlib import Path
from typing import Any, Self, SupportsIndex

import trainyard.run.session as session
from trainyard.run.fact_types.fact_section import nested
from trainyard.run.limits import WarnedNames, legal_step, number_of
from trainyard.run.other_tools.wandb_fields import Fields
from trainyard.run.other_tools.wandb_media import Artifact as Artifact
from trainyard.run.other_tools.wandb_media import Histogram as Histogram
from trainyard.run.other_tools.wandb_media import Image as Image
from trainyard.run.other_tools.wandb_media import SavedFiles
from trainyard.run.other_tools.wandb_media import Table as Table

logger = logging.getLogger("trainyard")

INERT = frozenset(
    {
        *("Audio", "Graph", "Html", "JoinedTable", "Molecule", "Object3D", "Plotly", "Settings"),
        *("Video", "alert", "log_code", "mark_preempting", "plot", "restore"),
        *("termerror", "termlog", "termwarn", "unwatch", "watch"),
    }
)
"""Names of wandb that are accepted but have no effect."""
ABSENT = frozenset({"Api", "agent", "controller", "sweep", "use_artifact"})
"""Names of wandb that raise an error, because a script needs their result."""

_warned = WarnedNames()


class Error(Exception):
    """A call that this module cannot carry out; wandb's error has the same name."""


class Inert:
    """Replaces an object of wandb that has no function here; calls of it have no effect."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __call__(self, *_: object, **__: object) -> Inert:
        """Warn once, and do nothing else."""
        _warn(
            self._name,
            "does nothing: Trainyard stores numbers, images, histograms, tables and files",
        )
        return self

    def __getattr__(self, name: str) -> Inert:
        if name.startswith("__"):
            raise AttributeError(name)
        return Inert(f"{self._name}.{name}")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        return None


class TrackedRun:
    """The result of `init`, which logs to the run of this process (`trainyard.init`)."""

    def __init__(self, config: object) -> None:
        self._run = session.init()
        self._row: dict[str, float] = {}
        self._step = 0
        self._saved = SavedFiles(_warn)
        self._tags: tuple[str, ...] = ()
        self.config = Fields(self._run.arguments, self._run.config)
        if config is not None:
            self.config.update(config)
        self.summary = Fields({}, self._run.summary)
        self.ended = False

    @property
    def step(self) -> int:
        """Step that the next `log` without `step` uses."""
        return self._step

    @property
    def id(self) -> str:
        """Id of the job; `none` outside a job."""
        return self._run.job_id or "none"

    @property
    def name(self) -> str:
        """Name of the job; `none` outside a job."""
        return self._run.name or "none"

    @property
    def dir(self) -> str:
        """The run directory; the working directory outside a job."""
        return str(self._run.directory or ".")

    @property
    def url(self) -> str | None:
        """Always None, because a script does not know the address of the dashboard."""
        return None

    @property
    def tags(self) -> tuple[str, ...]:
        """Tags that the script set last; the tags that it set before stay tags of the job, too."""
        return self._tags

    @tags.setter
    def tags(self, tags: Iterable[str]) -> None:
        self._tags = (tags,) if isinstance(tags, str) else tuple(tags)
        self._run.add_tags(*self._tags)

    def log(
        self,
        data: Mapping[str, Any],
        step: SupportsIndex | None = None,
        commit: bool | None = None,
        **_: object,
    ) -> None:
        """Log numbers, images, histograms and tables of a step; nested values are named `a.b`.

        Without `step`, each call logs one step, counted from 0, unless `commit=False`. With `step`,
        the values of a step are collected until a call gives a later step or `commit=True`, or the
        run ends. A call is left out with a warning if its step is before the current step, or is
        not an integer from 0 to 1,000,000,000.

        Raises:
            Error: the run has ended.
            BadLossError: a guard of the job found the logged loss or gradient norm bad.
        """
        if self.ended:
            raise Error("wandb.log after wandb.finish: call wandb.init first")
        if step is not None and not self._reach(step):
            return
        numbers: dict[str, float] = {}
        for name, value in _logged(data):
            if isinstance(value, Image | Histogram | Table):
                self._log_media(name, value)
            elif (number := _number(name, value)) is not None:
                numbers[name] = number
        self._row |= numbers
        self.summary.note_logged(numbers)
        if commit or (commit is None and step is None):
            self._write()
            self._step += 1

    def _reach(self, step: SupportsIndex) -> bool:
        """Start a later step if necessary; return whether the step still accepts values."""
        try:
            number = legal_step(int(step) if _is_whole(step) else step)
        except ValueError as error:
            _warn("log(step=...)", f"is left out: {error}")
            return False
        if number < self._step:
            _warn("log(step=...)", f"is left out: step {number} is before {self._step}")
            return False
        if number > self._step:
            self._write()
            self._step = number
        return True

    def save(self, glob_str: str, base_path: str | None = None, policy: str = "live") -> list[str]:
        """Store the files that match a pattern.

        The policy `now` stores the files immediately, and `end` at the end of the run. `live`
        stores them immediately, and stores changed files again at the end. A file that cannot be
        stored is left out, with one warning per name.
        """
        found = self._saved.save(
            self._run, glob_str, base_path=base_path, policy=policy, step=self._step
        )
        if not found:
            _warn(f"save({glob_str!r})", "finds no file")
        return found

    def log_artifact(
        self,
        artifact_or_path: Artifact | str,
        name: str | None = None,
        type: str | None = None,  # noqa: A002 - wandb's name
        **_: object,
    ) -> Artifact:
        """Store the files of an artifact or a path; warn once for each file that cannot be stored.

        Raises:
            ValueError: the path does not exist.
        """
        artifact = artifact_or_path
        if not isinstance(artifact, Artifact):
            path = Path(artifact)
            artifact = Artifact(name or path.resolve().name, type or "file")
            (artifact.add_dir if path.is_dir() else artifact.add_file)(str(path))
        artifact.log_to(self._run, self._step, _warn)
        return artifact

    def define_metric(self, name: str, *_: object, **options: object) -> Inert:
        """Define nothing, because charts always run over steps, and lists always show last
        values."""
        if options:
            _warn("define_metric", f"ignores {', '.join(options)}: charts run over steps")
        return Inert(f"define_metric({name!r})")

    def finish(self, exit_code: int | None = None, quiet: bool | None = None) -> None:
        """Write the remaining values, and end the run.

        `exit_code` has no effect, because the exit code of the script decides the job's outcome.
        """
        global run
        del exit_code, quiet
        if not self.ended:
            self._write()
            self._saved.finish(self._run, self._step)
            self._run.flush()
            self.ended = True
        if run is self:
            run = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.finish()

    def __getattr__(self, name: str) -> Inert:
        return _lacking(f"run.{name}", name)

    def _log_media(self, name: str, value: Image | Histogram | Table) -> None:
        try:
            value.log_to(self._run, name, self._step)
        except (OSError, TypeError, ValueError) as error:
            _warn(f"log({name!r})", f"is left out: {error}")

    def _write(self) -> None:
        row, self._row = self._row, {}
        if row:
            self._run.log(row, step=self._step)


run: TrackedRun | None = None
"""The run that `init` started; None before `init` and after `finish`."""


def init(
    *_: object, config: object = None, tags: Iterable[str] | None = None, **options: Any
) -> TrackedRun:
    """Return the run of this process; until `finish`, further calls return the same run.

    `config` has the job's `program.arguments` and the values given here. `tags` are added to the
    job's tags. Other options, such as name and project, have no effect, because the job defines
    them.
    """
    global run
    without = {"mode", "dir", "reinit", "settings", "anonymous", "resume", "save_code", "force"}
    if named := sorted(options.keys() - without):
        _warn("init", f"takes no {', '.join(named)}: the job has its own")
    if run is None:
        run = TrackedRun(config)
        atexit.register(run.finish)
    elif config is not None:
        run.config.update(config)
    if tags is not None:
        run.tags = tags
    return run


def log(
    data: Mapping[str, Any],
    step: SupportsIndex | None = None,
    commit: bool | None = None,
    **_: object,
) -> None:
    """Log values of a step; see `TrackedRun.log`.

    Raises:
        Error: no run has been started.
    """
    _present("log").log(data, step=step, commit=commit)


def define_metric(name: str, *_: object, **options: object) -> Inert:
    """Accept the name of a metric; see `TrackedRun.define_metric`.

    Raises:
        Error: no run has been started.
    """
    return _present("define_metric").define_metric(name, **options)


def save(glob_str: str, base_path: str | None = None, policy: str = "live") -> list[str]:
    """Store files by pattern; see `TrackedRun.save`.

    Raises:
        Error: no run has been started.
    """
    return _present("save").save(glob_str, base_path, policy)


def log_artifact(artifact_or_path: Artifact | str, **options: Any) -> Artifact:
    """Store the files of an artifact or a path; see `TrackedRun.log_artifact`.

    Raises:
        Error: no run has been started.
    """
    return _present("log_artifact").log_artifact(artifact_or_path, **options)


def finish(exit_code: int | None = None, quiet: bool | None = None) -> None:
    """End the run; do nothing without a run."""
    del exit_code, quiet
    if run is not None:
        run.finish()


def login(*_: object, **__: object) -> bool:
    """Return True, because the job needs no login."""
    return True


def _is_whole(step: object) -> bool:
    """Return whether a step is a float with an integer value, such as 2.0."""
    return isinstance(step, float) and step.is_integer()


def _present(name: str) -> TrackedRun:
    if run is None:
        raise Error(f"wandb.{name} before wandb.init")
    return run


def _logged(data: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yield each value with its name, also from nested mappings and from lists of images.

    The name of an image in a list ends in the index of the image.
    """
    for name, value in chain.from_iterable(nested(str(key), data[key]) for key in data):
        if isinstance(value, Mapping) and not value:
            continue
        if isinstance(value, list | tuple) and any(isinstance(each, Image) for each in value):
            yield from ((f"{name}/{index}", each) for index, each in enumerate(value))
        else:
            yield name, value


def _number(name: str, value: Any) -> float | None:
    """Return a value as a number; None with a warning if the value is left out."""
    if isinstance(value, Inert | str | bytes) or not hasattr(value, "__float__"):
        _warn(f"log({name!r})", f"is left out: a {_kind(value)} is not a number")
        return None
    try:
        return number_of(value)
    except (TypeError, ValueError, OverflowError) as error:  # a tensor of several numbers
        _warn(f"log({name!r})", f"is left out: {error}")
        return None


def _kind(value: object) -> str:
    return value._name if isinstance(value, Inert) else type(value).__name__


def _lacking(shown: str, name: str) -> Inert:
    if name in ABSENT:
        raise Error(f"wandb.{shown} does not exist in trainyard.wandb; see docs/wandb.md")
    if name in INERT:
        return Inert(shown)
    raise AttributeError(f"trainyard.wandb has no {shown!r}")


def _warn(name: str, what: str) -> None:
    if _warned.add(name):
        logger.warning("wandb.%s %s", name, what)


def __getattr__(name: str) -> Any:
    """Return `config`, `summary`, or an object that does nothing.

    Raises:
        Error: a script needs the result of this name, which this module cannot give, or there is no
            run for `config` or `summary`.
        AttributeError: wandb has no such name, or this module does not know the name.
    """
    if name in ("config", "summary"):
        return getattr(_present(name), name)
    return _lacking(name, name)
