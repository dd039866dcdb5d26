"""The faults, by what they strike; each module registers its own in `tests.chaos.fault.FAULTS`."""

from tests.chaos.faults import broker, clocks, control_plane, machines, nodes, postgresql, storage

MODULES = (control_plane, postgresql, broker, nodes, machines, clocks, storage)
