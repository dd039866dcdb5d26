"""`/calibrations`: errors of predicted step time and memory, by kind of hardware."""

from __future__ import annotations

from fastapi import APIRouter, Response

from server.api.auth.dependencies import may
from server.api.http.dependencies import ServerContext
from server.api.http.responses import reply
from server.telemetry.calibration.store import read_calibrations
from trainyard.protocol.goodput import CalibrationsView
from trainyard.protocol.rest.access import Permission

router = APIRouter(tags=["jobs"])


@router.get(
    "/calibrations",
    dependencies=[may(Permission.NODES_READ)],
    response_model=CalibrationsView,
    summary="Accuracy of predicted step times",
)
def calibrations(context: ServerContext) -> Response:
    """Return the calibration of each kind of hardware, with the errors of the predictions."""
    with context.database.read() as connection:
        return reply(CalibrationsView(calibrations=read_calibrations(connection)))
