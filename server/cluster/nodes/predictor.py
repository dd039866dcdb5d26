"""Prediction of a job's speed on the registered nodes, from coefficients of their hardware."""

from __future__ import annotations

from collections import Counter

from sqlalchemy import Connection, select

from server.core.database.slot_tables import calibrations
from server.core.database.tables import nodes
from trainyard.planner.speed.prediction import Predictor
from trainyard.planner.speed.quantities import NodeKind
from trainyard.planner.speed.rates import Calibration, sheet_rates
from trainyard.spec.auto import expected_device
from trainyard.spec.job import JobSpec
from trainyard.training.known_devices import Slot


def predictor_of(connection: Connection, spec: JobSpec) -> Predictor | None:
    """Return the predictor for the nodes on which a job may run, or None if no speed is known.

    If there are several kinds of hardware, the kind with the most slots is chosen.
    """
    if spec.program is not None or spec.model.is_own:
        return None
    kinds: Counter[NodeKind] = Counter()
    for hardware in connection.scalars(select(nodes.c.hardware)):
        kind = NodeKind(hardware.device, hardware.device_name, hardware.slots, hardware.cores)
        kinds[kind] += hardware.slots
    device = expected_device(spec, {Slot(each.device, each.name, 0) for each in kinds})
    eligible = [kind for kind in kinds if kind.device == device]
    if not eligible:
        return None
    node = max(eligible, key=kinds.__getitem__)
    columns = calibrations.c
    of_kind = (columns.device == node.device, columns.device_name == node.name)
    stored = connection.scalar(select(columns.fitted).where(*of_kind))
    fitted: Calibration | None = None if stored is None else stored.read_or_none()
    fitted = fitted or sheet_rates(node.device, node.name)
    return None if fitted is None else Predictor(node, fitted)
