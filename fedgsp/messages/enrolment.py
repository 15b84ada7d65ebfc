# Made by scripts/protos.py from protos/fedgsp/v1/enrolment.proto; do not edit.
"""How a node gets a certificate, keeps it fresh, and how others learn that it is not good any more."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Revoked:
    """The enrolments that are not good any more: all of them, each time."""

    #: Each is a URI (`urn:uuid:...`) that stands in the subjectAltName of the certificates of the enrolment.
    enrolments: tuple[str, ...]
