"""Values of a configuration, checked before anything starts; each error is one line."""

from __future__ import annotations

import math


class ConfigError(ValueError):
    """A value that cannot be used: names the field, what was given and what is allowed."""

    def __init__(self, name: str, given: object, allowed: str) -> None:
        super().__init__(f"{name}: got {given!r}, allowed: {allowed}")
        self.name, self.given, self.allowed = name, given, allowed


def one_of(name: str, given: str, allowed: tuple[str, ...]) -> None:
    """Refuses a word that is not among the allowed ones."""
    if given not in allowed:
        raise ConfigError(name, given, " | ".join(allowed))


def at_least(name: str, given: float, least: float, *, strictly: bool = False) -> None:
    """Refuses NaN, infinity and what is below `least`, or equal to it if `strictly`."""
    if not (math.isfinite(given) and (given > least if strictly else given >= least)):
        raise ConfigError(name, given, f"a number {'>' if strictly else '>='} {least:g}")


def between(name: str, given: float, least: float, most: float) -> None:
    """Refuses NaN and what is outside [least, most]."""
    if not least <= given <= most:
        raise ConfigError(name, given, f"a number from {least:g} to {most:g}")
