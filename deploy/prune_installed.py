"""Takes out of an installed environment what an aggregator never loads, so that an image is small.

Run as ``python prune_installed.py SITE_PACKAGES`` (Containerfile); prints its size before and after. What may
go was found by running what is left: tests/e2e/test_pruned_installation.py.
"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path
from typing import Final

UNUSED: Final = (
    # Arrow's network protocol and its client of S3: a lake's files are read by deltalake and fsspec.
    "pyarrow/libarrow_flight.so*", "pyarrow/_flight.*", "pyarrow/libarrow_python_flight.so*",
    "pyarrow/libarrow_s3.so*", "pyarrow/_s3fs.*",
    # To compile against.
    "pyarrow/include", "pyarrow/includes", "pyarrow/src", "pyarrow/*.pyx", "pyarrow/*.pxi", "pyarrow/*.pxd",
    "pyarrow/libarrow_python.so", "pyarrow/libarrow_python.so.*.*.*", "numpy/_core/include",
    "numpy/_core/lib", "numpy/random/lib", "numpy/f2py", "numpy/distutils",
    # File systems, formats and keys of a lake that rankmem has none of.
    "pyarrow/_hdfs.*", "pyarrow/_azurefs.*", "pyarrow/_gcsfs.*", "pyarrow/_orc.*", "pyarrow/_dataset_orc.*",
    "pyarrow/*parquet_encryption*", "pyarrow/_pyarrow_cpp_tests.*", "numpy/_core/*_tests.*",
    # Languages that rich could highlight; nothing shows code.
    "pygments/lexers/[!_p]*", "pygments/lexers/_*_builtins.py",
    # Tests of others.
    "pyarrow/tests", "numpy/tests", "numpy/*/tests", "numpy/testing/_private",
    # What installs. Here nothing is installed any more.
    "pip", "pip-*", "setuptools", "setuptools-*", "pkg_resources", "wheel", "wheel-*", "_distutils_hack",
    "distutils-precedence.pth",
)  # fmt: skip
MIB: Final = 1 << 20


def size_bytes(folder: Path) -> int:
    """Of all files below, as a disk counts them."""
    return sum(path.lstat().st_blocks * 512 for path in folder.rglob("*") if not path.is_symlink())


def prune(site_packages: Path) -> None:
    """Deletes what is unused. Symbols stay: OpenBLAS as numpy brings it does not load after ``strip``."""
    for pattern in UNUSED:
        for path in site_packages.glob(pattern):
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path)
            else:
                path.unlink()


def main() -> None:
    """Prunes the folder named on the command line."""
    site_packages = Path(sys.argv[1])
    before = size_bytes(site_packages)
    prune(site_packages)
    after = size_bytes(site_packages)
    print(f"{before / MIB:.0f} MiB installed, {after / MIB:.0f} MiB left")


if __name__ == "__main__":
    main()
