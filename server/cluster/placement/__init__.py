"""Placement of queued jobs and operations, and reasons why they wait. Pure, without database."""
