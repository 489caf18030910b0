"""The package of this checkout, or the installed one where RAVEL_TEST_INSTALLED is set."""

import os
import pathlib
import sys

from hypothesis import settings

ROOT = pathlib.Path(__file__).resolve().parents[2]
if not os.environ.get("RAVEL_TEST_INSTALLED"):
    sys.path.insert(0, str(ROOT / "python"))
    os.environ["PYTHONPATH"] = os.pathsep.join([str(ROOT / "python"), *filter(None, [os.environ.get("PYTHONPATH")])])

settings.register_profile("ravel", database=None, deadline=None, print_blob=True)
settings.load_profile("ravel")
