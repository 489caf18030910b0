"""Puts functions of ours in the place of a framework's: in the module that defines them, and wherever else they were
imported to by name already."""

from __future__ import annotations

import importlib
import sys
from typing import Any, Mapping

__all__ = ["Refused", "put"]


class Refused(ValueError, AssertionError):
    """Input that cannot be used. The frameworks assert such things, so this is an AssertionError to callers who catch
    theirs, and a ValueError to other callers."""


def put(module: Any, replacements: Mapping[str, Any]) -> list[str]:
    """Replaces attributes of ``module`` (or of the module of that name), and every reference to the old ones in loaded
    modules of the same package. Returns the places, as "module.name"; a name that the module lacks is an error."""
    target = importlib.import_module(module) if isinstance(module, str) else module
    package = target.__name__.partition(".")[0]
    missing = [name for name in replacements if not hasattr(target, name)]
    if missing:
        raise AttributeError(f"{target.__name__} has no {', '.join(missing)}: this release is not one that the adapter "
                             f"knows; nothing was changed")
    theirs = {name: getattr(target, name) for name in replacements}
    loaded = [m for name, m in sorted(sys.modules.items())
              if m is not None and m is not target and name.partition(".")[0] == package]
    places = []
    for name, new in replacements.items():
        for place in [target, *(m for m in loaded if vars(m).get(name) is theirs[name])]:
            setattr(place, name, new)
            places.append(f"{place.__name__}.{name}")
    return places
