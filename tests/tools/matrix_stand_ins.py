"""Stand-ins for the CUDA libraries that a CUDA build of torch wants to load, for a machine that has none.

The package registry holds CUDA builds of torch alone, which need some 2.5 GB of NVIDIA's libraries to be
imported. Where only torch's CPU side is looked at, each of them is a small one with the functions that torch
asks it for, each of which returns 100: cudaErrorNoDevice (:func:`provide`). Where trainings run on a GPU that
is none, each returns 0, and the runtime is tests/e2e/cuda_fake's (:func:`provide_device`). torch's own
libraries are as in the wheel.
"""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

_SYSTEM: Final = re.compile(r"^(ld-linux.*|lib(c|m|dl|rt|pthread|util|gcc_s|stdc\+\+|gomp|atomic|z)\.so.*)$")
_OF_SYSTEM: Final = re.compile(r"GLIBC|CXXABI|GCC|G?OMP")
_NOT_THEIRS: Final = ("_Z", "__cxa", "__gxx", "Py", "_Py")
_FUNCTION: Final = "  .globl {0}\n  .type {0},@function\n{0}:\n"
_BODIES: Final = {"x86_64": "  movl ${}, %eax\n  ret\n", "aarch64": "  mov w0, #{}\n  ret\n"}
_BESIDE: Final = "libstand_ins.so"
_FAKES: Final = Path(__file__).parents[1] / "e2e" / "cuda_fake"
_NVML: Final = "libnvidia-ml.so.1"
"""Opened by name, so that no library of torch's needs it to be linked."""


NO_DEVICE: Final = 100
SUCCESS: Final = 0


def provide(torch_dir: Path, machine: str) -> list[str]:
    """Put a stand-in beside torch's libraries for each library that they miss; the names of those made."""
    return [library.name for library in _stand_ins(torch_dir, torch_dir / "lib", machine, NO_DEVICE)]


def provide_device(torch_dir: Path, folder: Path, machine: str, device_bytes: int) -> dict[str, str]:
    """Make a device on which memory is handed out and nothing is computed: kernels and copies do nothing.

    Args:
        torch_dir: of torch for CUDA 13, which stays as it is.
        folder: for the libraries.
        machine: as ``platform.machine()`` has it.
        device_bytes: the device's memory.

    Returns:
        The environment in which a process has it.
    """
    made = _stand_ins(torch_dir, folder, machine, SUCCESS)
    (runtime,) = (library for library in made if library.name.startswith("libcudart."))
    source, versions = folder / "rest.c", folder / "runtime.map"
    names = "".join(f"__attribute__((weak)) int {name}(void) {{ return 0; }}\n" for name in runtime.functions)
    source.write_text(names)
    versions.write_text(f"{runtime.version} {{ global: *; }};\n")
    link = ["gcc", "-O1", "-shared", "-fPIC", "-w", f"-Wl,-soname,{runtime.name},--version-script={versions}"]
    link += ["-DFAKE_DEVICES=1", "-DFAKE_READY=1", str(_FAKES / "fake_cudart.c"), str(source), "-lpthread"]
    subprocess.run([*link, "-o", str(folder / runtime.name)], check=True, capture_output=True)
    link = ["gcc", "-O1", "-shared", "-fPIC", f"-Wl,-soname,{_NVML}", str(_FAKES / "fake_nvml.c")]
    subprocess.run([*link, "-o", str(folder / _NVML)], check=True, capture_output=True)
    first = [folder / library.name for library in made] + [folder / _BESIDE, folder / _NVML]
    return {"LD_PRELOAD": ":".join(map(str, first)), "FAKE_DEVICE_BYTES": str(device_bytes)}


@dataclass(frozen=True, slots=True, kw_only=True)
class _Library:
    name: str
    version: str
    """That its functions are asked for by; empty: none."""
    functions: list[str]


def _stand_ins(torch_dir: Path, folder: Path, machine: str, returned: int) -> list[_Library]:
    libraries = [*(torch_dir / "lib").glob("*.so*"), *torch_dir.glob("_C*.so")]
    missing = sorted(set(_needed(libraries)) - {library.name for library in libraries})
    wanted = _undefined(libraries)
    version_of = {file: version for version, file in _versions(libraries)}
    beside = folder / _BESIDE  # what no version is asked for of is found in whichever library has it
    if missing:
        _make(beside, sorted(wanted.get("", set())), machine, returned)
    made = []
    for name in missing:
        version = version_of.get(name, "")  # each of them has one at most
        functions = sorted(wanted.get(version, set())) if version else []
        _make(folder / name, functions, machine, returned, version, beside=beside)
        made.append(_Library(name=name, version=version, functions=functions))
    return made


def _make(
    path: Path,
    functions: list[str],
    machine: str,
    returned: int,
    version: str = "",
    beside: Path | None = None,
) -> None:
    source, versions = path.with_suffix(".s"), path.with_suffix(".map")
    names = "".join(_FUNCTION.format(name) for name in functions)
    source.write_text(
        f'  .text\n{names}{_BODIES[machine].format(returned)}  .section .note.GNU-stack,"",%progbits\n'
    )
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
