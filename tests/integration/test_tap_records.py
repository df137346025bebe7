"""The tap's setters write the bytes that Python's names do: a program with the generated header alone."""

from __future__ import annotations

import subprocess
from pathlib import Path

from rankmem_agent.spool.c_header import c_header
from rankmem_agent.spool.layout import FIELDS, Kind
from rankmem_agent.spool.records import packed
from rankmem_agent.tap.build import find_compiler


def test_a_record_of_each_kind_filled_in_c_has_the_bytes_of_python(tmp_path: Path) -> None:
    (tmp_path / "spool_layout.h").write_text(c_header())
    lines = ['#include "spool_layout.h"', "#include <cstdio>", "int main() {"]
    wanted = []
    for kind in Kind:
        lines.append(f"  Rkm{kind.name.title().replace('_', '')} {kind.name};")
        for value, name in enumerate(FIELDS[kind], start=1):
            lines.append(f"  {kind.name}.{name}() = {value};")
        lines.append(f"  fwrite(&{kind.name}, sizeof {kind.name}, 1, stdout);")
        wanted.append(packed(kind, **{name: value for value, name in enumerate(FIELDS[kind], start=1)}))
    source = tmp_path / "each.cpp"
    source.write_text("\n".join([*lines, "}"]) + "\n")
    compiler = find_compiler()
    assert compiler is not None
    subprocess.run([compiler, "-std=c++20", "-Wall", "-Werror", source, "-o", tmp_path / "each"], check=True)
    done = subprocess.run([tmp_path / "each"], check=True, capture_output=True)
    assert done.stdout == b"".join(wanted)
