"""Makes the root of an image: this Python, and the shared libraries that it and an environment load.

Run as ``python runtime_root.py ROOT ENVIRONMENT`` (Containerfile). Nothing else of the base comes along but a
shell, certificates and time zones: no package manager, no perl. Every file lies where it lay in the base.
"""

from __future__ import annotations

import compileall
import os
import re
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Iterator
from pathlib import Path
from typing import Final

UNUSED: Final = (
    # What installs, compiles or shows windows.
    "ensurepip", "lib2to3", "distutils", "idlelib", "tkinter", "turtledemo", "config-*", "site-packages",
    "dist-packages", "lib-dynload/_tkinter.*", "pydoc_data",
    # Tests.
    "test", "unittest/test", "lib-dynload/_test*", "lib-dynload/_ctypes_test.*", "lib-dynload/xx*",
    "__pycache__",
)  # fmt: skip
"""Of the standard library."""
BESIDE: Final = (
    "/bin/sh", "/etc/ssl", "/usr/lib/ssl", "/usr/lib/locale/C.utf8", "/usr/share/zoneinfo", "/etc/localtime",
    "/etc/nsswitch.conf", "/etc/services",
)  # fmt: skip
"""Where the base has it. OpenSSL looks for certificates in /usr/lib/ssl, which links to /etc/ssl."""
LEFT_OUT: Final = ("__pycache__", "right", "posix", "private")
"""Wherever they are: bytecode is made anew, time zones are there three times, keys are not wanted."""
MOUNTED: Final = ("dev", "proc", "sys", "mnt", "tmp")
"""Empty; where a root is read-only nobody else could make them."""
ETC: Final = {
    "passwd": "root:x:0:0:root:/root:/bin/sh\nrankmem:x:1000:1000:rankmem:/tmp:/bin/sh\n",
    "group": "root:x:0:\nrankmem:x:1000:\n",
    "hosts": "127.0.0.1 localhost\n::1 localhost\n",
}
"""Files of /etc; what runs a container puts its own over hosts."""


def copied(path: Path, root: Path) -> None:
    """Copies a file or folder to the same path below ``root``, with each symbolic link on the way to it."""
    here = Path("/")
    for part in path.parts[1:]:
        here = here / part
        there = root / here.relative_to("/")
        if here.is_symlink():
            target = Path(os.path.normpath(here.parent / here.readlink()))
            if not there.is_symlink():
                there.parent.mkdir(parents=True, exist_ok=True)
                there.symlink_to(here.readlink())
            copied(target / path.relative_to(here), root)
            return
    if path.is_dir():
        left_out = shutil.ignore_patterns(*LEFT_OUT)
        shutil.copytree(path, there, symlinks=True, ignore=left_out, dirs_exist_ok=True)
        for link in [each for each in there.rglob("*") if each.is_symlink()]:
            inside = Path("/") / link.relative_to(root)
            if inside.exists() and not inside.resolve().is_relative_to(path):
                copied(inside.resolve(), root)
    elif not there.exists():
        there.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(path, there)


def libraries_of(binaries: list[Path]) -> Iterator[Path]:
    """The shared libraries that programs and libraries load, and their loader.

    Raises:
        RuntimeError: one is not found.
    """
    for binary in binaries:
        output = subprocess.run(["ldd", str(binary)], capture_output=True, text=True, check=False).stdout
        if "not found" in output:
            raise RuntimeError(f"{binary} needs libraries that are not there:\n{output}")
        yield from map(Path, re.findall(r"(?:=> |^\t)(/\S+) \(0x", output, re.MULTILINE))


def make_root(root: Path, environment: Path) -> None:
    """Writes the root of the image.

    Args:
        root: a folder, made where it is missing.
        environment: a virtual environment of the Python that runs this; it is not copied.
    """
    base = Path(sys.base_prefix)
    program = base / "bin" / f"python{sys.version_info.major}.{sys.version_info.minor}"
    standard = Path(sysconfig.get_path("stdlib", vars={"base": str(base), "installed_base": str(base)}))
    for path in (program, program.with_name("python3"), standard, *map(Path, BESIDE)):
        if path.exists():
            copied(path, root)
    kept = root / standard.relative_to("/")
    for pattern in UNUSED:
        for path in kept.glob(pattern):
            shutil.rmtree(path) if path.is_dir() else path.unlink()
    binaries = [program, Path("/bin/sh"), *kept.rglob("*.so*"), *environment.rglob("*.so*")]
    for library in sorted(set(libraries_of([each for each in binaries if not each.is_symlink()]))):
        if not library.is_relative_to(environment):
            copied(library, root)
    for name, text in ETC.items():
        (root / "etc").mkdir(exist_ok=True)
        (root / "etc" / name).write_text(text)
    for name in MOUNTED:
        (root / name).mkdir(exist_ok=True)
    (root / "tmp").chmod(0o1777)
    compileall.compile_dir(str(kept), quiet=2, stripdir=str(root), workers=0)


if __name__ == "__main__":
    make_root(Path(sys.argv[1]).absolute(), Path(sys.argv[2]).absolute())
