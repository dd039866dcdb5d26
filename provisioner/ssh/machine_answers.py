"""A machine's response to `look` in `host.sh`: its requests, interpreters and bundle."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from trainyard.base.ids import is_id
from trainyard.protocol.node_sources.messages import MAX_NODES, EngineNode

STATES = frozenset({"reserved", "starting", "running", "leaving", "gone"})
"""States of a request on a machine, as named in `host.sh`."""


@dataclass(frozen=True)
class RemotePilot:
    """The pilot of a request on a machine, as the machine describes it."""

    source: str
    index: int
    nodes: int
    state: str
    starts: float | None
    ends: float | None
    instance: str
    last_line: str

    def check(self, addresses: tuple[str, ...]) -> None:
        """Raise ValueError if a report that contains this pilot would be invalid."""
        if self.state not in STATES or not 1 <= self.nodes <= MAX_NODES:
            raise ValueError(f"state {self.state!r} of {self.nodes} nodes")
        EngineNode(index=self.index, instance=self.instance, addresses=addresses)


@dataclass(frozen=True)
class Machine:
    """The response of a machine."""

    addresses: tuple[str, ...]
    pilots: Mapping[str, RemotePilot]
    pythons: Mapping[str, str]
    """Path of each interpreter that was found, by version."""
    installed: bool

    @classmethod
    def parse(cls, lines: Iterable[str]) -> Machine:
        """Parse a response to `look`; lines of unknown kinds are ignored.

        Raises:
            ValueError: the line of a request does not have the format of `host.sh`.
        """
        addresses: tuple[str, ...] = ()
        pilots: dict[str, RemotePilot] = {}
        pythons: dict[str, str] = {}
        installed = False
        for line in lines:
            match line.split(" "):
                case ["addresses", *found]:
                    addresses = tuple(dict.fromkeys(filter(None, found)))[:16]
                case ["request", request_id, source, index, nodes, *rest] if is_id(request_id):
                    state, starts, ends, instance, *words = rest
                    pilot = RemotePilot(
                        source, int(index), int(nodes), state, _time(starts), _time(ends), instance,
                        " ".join(words),
                    )  # fmt: skip
                    pilot.check(addresses)
                    pilots[request_id] = pilot
                case ["python", version, *path]:
                    pythons.setdefault(version, " ".join(path))
                case ["installed"]:
                    installed = True
                case _:
                    pass
        return cls(addresses, pilots, pythons, installed)

    @property
    def free(self) -> bool:
        """Whether no source has a pilot on the machine."""
        return all(pilot.state == "gone" for pilot in self.pilots.values())


def _time(text: str) -> float | None:
    """Parse a Unix time; None if it is absent."""
    if text == "-":
        return None
    time_ = float(text)
    if not 0 <= time_ < float("inf"):
        raise ValueError(f"{text!r} is no time")
    return time_
