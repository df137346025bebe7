"""Stand-ins for the CUDA libraries that a CUDA build of torch wants to load, for a machine that has none.

The package registry holds CUDA builds of torch alone, which need some 2.5 GB of NVIDIA's libraries to be
imported. Here only torch's CPU side is looked at, so each of them is a small one with the functions that
torch asks it for, each of which returns 100: cudaErrorNoDevice. torch's own libraries are as in the wheel.
"""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Final

_SYSTEM: Final = re.compile(r"^(ld-linux.*|lib(c|m|dl|rt|pthread|util|gcc_s|stdc\+\+|gomp|atomic|z)\.so.*)$")
_OF_SYSTEM: Final = re.compile(r"GLIBC|CXXABI|GCC|G?OMP")
_NOT_THEIRS: Final = ("_Z", "__cxa", "__gxx", "Py", "_Py")
_FUNCTION: Final = "  .globl {0}\n  .type {0},@function\n{0}:\n"
_BODIES: Final = {"x86_64": "  movl $100, %eax\n  ret\n", "aarch64": "  mov w0, #100\n  ret\n"}


def provide(torch_dir: Path, machine: str) -> list[str]:
    """Put a stand-in beside torch's libraries for each library that they miss; the names of those made."""
    folder = torch_dir / "lib"
    libraries = [*folder.glob("*.so*"), *torch_dir.glob("_C*.so")]
    missing = sorted(set(_needed(libraries)) - {library.name for library in libraries})
    wanted = _undefined(libraries)
    version_of = {file: version for version, file in _versions(libraries)}
    for number, name in enumerate(missing):
        version = version_of.get(name, "")  # each of them has one at most
        functions = wanted.get(version, set()) if version else set()
        if number == 0:  # found in whichever library of the process has it
            _make(folder / "libstand_ins.so", sorted(wanted.get("", set())), machine)
        _make(folder / name, sorted(functions), machine, version, beside=folder / "libstand_ins.so")
    return missing


def _make(
    path: Path, functions: list[str], machine: str, version: str = "", beside: Path | None = None
) -> None:
    source, versions = path.with_suffix(".s"), path.with_suffix(".map")
    names = "".join(_FUNCTION.format(name) for name in functions)
    source.write_text(f'  .text\n{names}{_BODIES[machine]}  .section .note.GNU-stack,"",%progbits\n')
    link = ["gcc", "-shared", "-fPIC", f"-Wl,-soname,{path.name}", "-o", str(path), str(source)]
    if beside is not None:
        link += ["-Wl,--no-as-needed", str(beside), "-Wl,-rpath,$ORIGIN"]
    if version:
        versions.write_text(f"{version} {{ global: *; }};\n")
        link.append(f"-Wl,--version-script={versions}")
    subprocess.run(link, check=True, capture_output=True)
    source.unlink()
    versions.unlink(missing_ok=True)


def _needed(libraries: list[Path]) -> Iterator[str]:
    for library in libraries:
        said = subprocess.run(["readelf", "-dW", str(library)], capture_output=True, text=True, check=True)
        for name in re.findall(r"\(NEEDED\).*\[(.+)\]", said.stdout):
            if not _SYSTEM.match(name):
                yield name


def _versions(libraries: list[Path]) -> Iterator[tuple[str, str]]:
    """Versions of symbols that the libraries ask for, each with the file that has to have it."""
    for library in libraries:
        said = subprocess.run(["readelf", "-VW", str(library)], capture_output=True, text=True, check=True)
        for part in said.stdout.split("File: ")[1:]:
            for version in re.findall(r"Name: (\S+)", part.split("Version: ")[0]):
                yield version, part.split()[0]


def _undefined(libraries: list[Path]) -> dict[str, set[str]]:
    """C functions that the libraries use and none of them has, by the version asked for ("": none)."""
    wanted, had = dict[str, set[str]](), set[str]()
    for library in libraries:
        listed = subprocess.run(["nm", "-D", str(library)], capture_output=True, text=True, check=False)
        for line in listed.stdout.splitlines():
            *_, kind, name = line.split()
            bare, _, version = name.partition("@")
            if kind not in "Uwv":
                had.add(bare)
            elif kind == "U" and not bare.startswith(_NOT_THEIRS) and not _OF_SYSTEM.match(version):
                wanted.setdefault(version, set()).add(bare)
    return {version: names - had for version, names in wanted.items()}
