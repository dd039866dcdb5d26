"""The kinds of engines, with the module and the options of each kind."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from pydantic import JsonValue

from provisioner.base import NodeSource, Place, SourceError
from provisioner.settings import SourceConfig, parse_table
from trainyard.protocol.node_sources.messages import SourceKind

Options = Mapping[str, JsonValue]
Opened = Callable[[Place, Options, str], NodeSource]


# Each kind has its own imports; for example, a Slurm provisioner needs no Kubernetes client.


def _slurm(place: Place, options: Options, pointer: str) -> NodeSource:
    from provisioner.slurm import SlurmSource
    from provisioner.slurm_options import SlurmOptions

    return SlurmSource(place, parse_table(SlurmOptions, options, pointer=pointer))


def _ssh(place: Place, options: Options, pointer: str) -> NodeSource:
    from provisioner.ssh.hosts import SshOptions
    from provisioner.ssh.source import SshSource

    return SshSource(place, parse_table(SshOptions, options, pointer=pointer))


def _kubernetes(place: Place, options: Options, pointer: str) -> NodeSource:
    from provisioner.kubernetes.manifest import KubernetesOptions, check_template
    from provisioner.kubernetes.source import KubernetesSource

    parsed = parse_table(KubernetesOptions, options, pointer=pointer)
    try:
        check_template(parsed)  # checked at the start and at each request, as the file may change
    except SourceError as error:
        raise ValueError(f"{pointer}: {error}") from error
    return KubernetesSource(place, parsed)


ENGINES: Mapping[SourceKind, Opened] = {
    "slurm": _slurm,
    "ssh": _ssh,
    "kubernetes": _kubernetes,
}


def open_engine(config: SourceConfig, place: Place) -> NodeSource:
    """Return the engine of a source; the engine is not called yet.

    Raises:
        ValueError: an option or a proxy variable is wrong, or an extra is not installed; the
            message names the option, the variable or the extra.
    """
    pointer = f"/sources/{config.name}/options"
    try:
        return ENGINES[config.kind](place, config.options, pointer)
    except KeyError as error:
        raise ValueError(f"source {config.name}: this version has no kind {error}") from error
    except ImportError as error:
        raise ValueError(
            f"source {config.name}: kind {config.kind!r} needs a package that is not installed "
            f"({error}); install trainyard-programs[provisioner,{config.kind}] (docs/install.md)"
        ) from error
