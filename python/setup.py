"""Builds libravel and the ravel command with make and puts them, with the MPI modules that could be built and the licence, into the
package. An sdist carries the C sources in native/, so that it builds alone.

    pip install ./python                      from a checkout; what `make` built in its build/ is taken
    RAVEL_MAKE_FLAGS="CC=clang -j8" pip install ./python
    RAVEL_PREBUILT=build pip install ./python   takes the files of that folder (of the checkout's) as they are
"""

import os
import pathlib
import re
import shlex
import shutil
import subprocess

from setuptools import setup
from setuptools.command.build_py import build_py
from setuptools.command.sdist import sdist
from setuptools.dist import Distribution

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE / "native" if (HERE / "native").is_dir() else HERE.parent
NATIVE = ["Makefile", "LICENSE", "mk/probe.sh", "mk/ravel.pc.in", "include", "src", "train", "cli"]


def version() -> str:
    header = (ROOT / "include" / "ravel" / "base.h").read_text()
    return re.search(r'RAVEL_VERSION_STRING "(.*?)"', header).group(1)


def compile_with(command: list) -> None:
    """Runs make. pip hides what a build prints, so a terminal gets a count of its own."""
    try:
        terminal = open("/dev/tty", "w")
    except OSError:
        terminal = None
    files = 0
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as make:
        for line in make.stdout:
            print(line, end="", flush=True)
            files += line.startswith("  CC")
            if terminal and line.startswith("  CC"):
                terminal.write(f"\r  ravel: {files} files compiled")
                terminal.flush()
    if terminal:
        terminal.write("\r\x1b[K" if files else "")
        terminal.close()
    if make.returncode:
        raise subprocess.CalledProcessError(make.returncode, command)


class Build(build_py):
    """The package's files, and the libraries and the command among them."""

    def run(self) -> None:
        super().run()
        target = pathlib.Path(self.build_lib) / "ravel"
        (target / "bin").mkdir(parents=True, exist_ok=True)
        folder = self.folder()
        for file in [folder / "libravel.so", *sorted(folder.glob("libravel_*.so")), ROOT / "LICENSE"]:
            shutil.copy2(file, target / file.name)
        shutil.copy2(folder / "ravel", target / "bin" / "ravel")

    def folder(self) -> pathlib.Path:
        """Where the built files are; made first, unless RAVEL_PREBUILT names one."""
        prebuilt = os.environ.get("RAVEL_PREBUILT")
        folder = ROOT / (prebuilt or "build/python/libravel")
        if not prebuilt and "RAVEL_MAKE_FLAGS" not in os.environ and (ROOT / "build" / "libravel.so").exists():
            folder = ROOT / "build" # of `make`, which compiles what is out of date
        if not prebuilt:
            flags = shlex.split(os.environ.get("RAVEL_MAKE_FLAGS", f"-j{os.cpu_count() or 1}"))
            if folder == ROOT / "build" and not (folder / "libravel_cuda.so").exists():
                flags.append("HAVE_CUDA=") # it was left out
            compile_with(["make", "--no-print-directory", "-C", str(ROOT), f"BUILD={folder.relative_to(ROOT)}", *flags, "lib",
                          f"{folder.relative_to(ROOT)}/ravel"])
        missing = [name for name in ("libravel.so", "ravel") if not (folder / name).exists()]
        if missing:
            raise FileNotFoundError(f"{folder / missing[0]} is not there; run make in {ROOT}, or leave RAVEL_PREBUILT away")
        return folder


class Source(sdist):
    """The package, and what libravel and the command are made from."""

    def make_release_tree(self, base_dir, files) -> None:
        super().make_release_tree(base_dir, files)
        ignore = shutil.ignore_patterns("*.o", "*.d")
        for name in NATIVE:
            source, target = ROOT / name, pathlib.Path(base_dir) / "native" / name
            target.parent.mkdir(parents=True, exist_ok=True)
            if source.is_dir():
                shutil.copytree(source, target, ignore=ignore, dirs_exist_ok=True)
            else:
                shutil.copy2(source, target)


class Native(Distribution):
    """The wheel is of this platform, though of any Python 3."""

    def has_ext_modules(self) -> bool:
        return True


def commands() -> dict:
    found = {"build_py": Build, "sdist": Source}
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
