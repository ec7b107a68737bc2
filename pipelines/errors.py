"""What the command line tells a person in one line. Any other exception is a bug."""

from __future__ import annotations


class ShortlistError(Exception):
    """Base of the errors a command ends with; `status` is its exit status."""

    status = 1


class EvidenceError(ShortlistError):
    """What was asked is possible, but the evidence does not carry it."""


class UserError(ShortlistError):
    """Bad input: the message names the field, what was given and what is allowed."""

    status = 2


class ServiceError(ShortlistError):
    """A service (scheduler, tracking store, filesystem) is out of reach."""

    status = 3
