"""The parallel axes; each module of this folder except `base` defines one kind of parallelism.

A module has `FIELDS`, the fields that it adds to the spec's section `parallelism`, and `AXES`, its
axes as data (`axes.base.Axis`). Layout, mesh, planner, legality rules, resume options and labels
iterate over `AXES`. An axis that a stored layout lacks has size 1.
"""

from __future__ import annotations

import importlib
import pkgutil
from types import ModuleType

from trainyard.axes.base import Axis, AxisFields


def _modules() -> list[ModuleType]:
    names = sorted(found.name for found in pkgutil.iter_modules(__path__))
    return [importlib.import_module(f"{__name__}.{name}") for name in names if name != "base"]


_MODULES = sorted(_modules(), key=lambda module: min(axis.order for axis in module.AXES))

AXES: tuple[Axis, ...] = tuple(
    sorted((axis for module in _MODULES for axis in module.AXES), key=lambda axis: axis.order)
)
"""All axes, in the order in which products, labels and tables list them."""
MESH_AXES: tuple[Axis, ...] = tuple(
    sorted((axis for axis in AXES if axis.multiplies_world), key=lambda axis: axis.mesh_order)
)
"""Axes whose sizes multiply to the world size. The first of them varies slowest in the numbering of
the ranks.
"""
FIELDS: tuple[type[AxisFields], ...] = tuple(module.FIELDS for module in _MODULES)
"""Fields that each module adds to the section `parallelism`, in the order of the axes."""
