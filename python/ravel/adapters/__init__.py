"""Ravel behind the call shapes of today's frameworks, so that trying it is a one-line change.

    import ravel
    ravel.adapters.verl.install()

An adapter is imported when it is first named. Each says where it differs from the original, and why: mostly that a token
budget is a hard cap here.
"""

import importlib
import importlib.util
import types


def __getattr__(name: str) -> types.ModuleType:
    if name.startswith("_") or importlib.util.find_spec(f"{__name__}.{name}") is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return importlib.import_module(f"{__name__}.{name}")
