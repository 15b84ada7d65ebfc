"""Moments as text, in every file that the programs write."""

from datetime import UTC, datetime


def stamp(moment: datetime) -> str:
    """A moment in UTC and ISO 8601, to the millisecond: 2026-11-01T09:30:00.125Z."""
    return moment.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
