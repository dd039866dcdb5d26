"""Placement of queued jobs and operations, and the reasons why they wait; pure, no database."""
