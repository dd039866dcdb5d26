"""Paths of the worker API under protocol 2, for supervisors that outlive an upgrade."""

from __future__ import annotations

from fastapi import APIRouter

from server.ingest.endpoints import claim_an_operation, report_on_an_operation
from trainyard.protocol.former import PATH

# Not in the OpenAPI document: nothing new is written against them.
router = APIRouter(prefix="/workers", include_in_schema=False)
router.add_api_route(f"{PATH}/claim", claim_an_operation, methods=["POST"])
router.add_api_route(f"{PATH}/report", report_on_an_operation, methods=["POST"])
