"""The package of this checkout, or the installed one where RAVEL_TEST_INSTALLED is set."""

import os
import pathlib
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
if not os.environ.get("RAVEL_TEST_INSTALLED"):
    sys.path.insert(0, str(ROOT / "python"))
