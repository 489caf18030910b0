"""Builds libravel with make and puts it, with the MPI modules that could be built and the licence, into the package.

    pip install ./python                      from a checkout
    RAVEL_MAKE_FLAGS="CC=clang -j8" pip install ./python
    RAVEL_PREBUILT=build pip install ./python   takes the libraries of that folder (of the checkout's) as they are
"""

import os
import pathlib
import re
import shlex
import shutil
import subprocess

from setuptools import setup
from setuptools.command.build_py import build_py
from setuptools.dist import Distribution

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parent


def version() -> str:
    header = (ROOT / "include" / "ravel" / "base.h").read_text()
    return re.search(r'RAVEL_VERSION_STRING "(.*?)"', header).group(1)


class Build(build_py):
    """The package's files, and the libraries among them."""

    def run(self) -> None:
        super().run()
        target = pathlib.Path(self.build_lib) / "ravel"
        target.mkdir(parents=True, exist_ok=True)
        for file in [*self.libraries(), ROOT / "LICENSE"]:
            shutil.copy2(file, target / file.name)

    def libraries(self) -> list:
        prebuilt = os.environ.get("RAVEL_PREBUILT")
        folder = ROOT / (prebuilt or "build/python/libravel")
        if not prebuilt:
            flags = shlex.split(os.environ.get("RAVEL_MAKE_FLAGS", f"-j{os.cpu_count() or 1}"))
            subprocess.run(["make", "--no-print-directory", "-C", str(ROOT), f"BUILD={folder}", *flags, "lib"], check=True)
        found = [folder / "libravel.so", *sorted(folder.glob("libravel_*.so"))]
        if not found[0].exists():
            raise FileNotFoundError(f"{found[0]} is not there; run make in {ROOT}, or leave RAVEL_PREBUILT away")
        return found


class Native(Distribution):
    """The wheel is of this platform, though of any Python 3."""

    def has_ext_modules(self) -> bool:
        return True


def commands() -> dict:
    found = {"build_py": Build}
    try:
        from setuptools.command.bdist_wheel import bdist_wheel
    except ImportError:  # older ones take it from the wheel package
        try:
            from wheel.bdist_wheel import bdist_wheel
        except ImportError:
            return found

    class AnyPython(bdist_wheel):
        def get_tag(self):
            return ("py3", "none", super().get_tag()[2])

    return {**found, "bdist_wheel": AnyPython}


setup(version=version(), license="Apache-2.0", distclass=Native, cmdclass=commands())
