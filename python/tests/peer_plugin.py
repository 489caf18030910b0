"""A pytest plug-in for a peer's own tests (mk/peers.sh): installs the adapters that RAVEL_PEER names before anything is collected."""

import importlib
import os

for name in os.environ["RAVEL_PEER"].split(","):
    importlib.import_module("ravel.adapters." + name).install()
