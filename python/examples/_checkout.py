"""Lets the examples run from a checkout (after `make`) without installing anything."""

import importlib.util
import pathlib
import sys

if importlib.util.find_spec("ravel") is None:
    sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
