"""Calls of a loaded library are led elsewhere, however it is linked, and its pages stay as they were."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from rankmem_agent.tap import build

pytestmark = pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++")

TAP = Path(build.__file__).parent
LIBRARY = '#include <unistd.h>\nextern "C" int ask() { return getppid() == 42 ? 42 : 7; }\n'
MAIN = """
#include "library_data.cpp"
#include <cstdio>
extern "C" int ask();
static int answer() { return 42; }
static char permission(void** slot) {
  FILE* maps = fopen("/proc/self/maps", "r");
  unsigned long begin, end;
  char flags[5], line[512], found = '?';
  while (fgets(line, sizeof line, maps) != nullptr) {
    if (sscanf(line, "%lx-%lx %4s", &begin, &end, flags) != 3) continue;
    const auto address = reinterpret_cast<unsigned long>(slot);
    if (address >= begin && address < end) found = flags[1];
  }
  fclose(maps);
  return found;
}
int main() {
  const bool was_asked_before = WAS_ASKED && ask() == 7;
  void** slots[4];
  const size_t count = rankmem::find_call_slots("libasked.so", "getppid", slots, 4);
  const char before = count == 1 ? permission(slots[0]) : '?';
  const bool replaced = count == 1 && rankmem::replace_pointer(slots[0], reinterpret_cast<void*>(&answer));
  static void* const constant = nullptr;
  const bool refused = !rankmem::replace_pointer(reinterpret_cast<void**>(&main), nullptr) &&
                       !rankmem::is_replaceable(const_cast<void**>(&constant));
  printf("%c %zu %d %d %d %d %d", before, count, replaced, ask(), before == permission(slots[0]), refused,
         was_asked_before == WAS_ASKED);
}
"""


@pytest.mark.parametrize("flags", [["-Wl,-z,lazy"], ["-Wl,-z,now,-z,relro"], ["-fno-plt", "-Wl,-z,lazy"]])
@pytest.mark.parametrize("was_asked", [0, 1])
def test_a_librarys_calls_are_led_elsewhere_and_its_pages_stay_as_they_were(
    flags: list[str], was_asked: int, tmp_path: Path
) -> None:
    (tmp_path / "asked.cpp").write_text(LIBRARY)
    (tmp_path / "main.cpp").write_text(MAIN)
    library = tmp_path / "libasked.so"
    _compile(["-shared", "-fPIC", *flags, str(tmp_path / "asked.cpp"), "-o", str(library)])
    found = [f"-L{tmp_path}", "-lasked", f"-Wl,-rpath,{tmp_path}"]
    program = [
        f"-DWAS_ASKED={was_asked}",
        f"-I{TAP}",
        str(tmp_path / "main.cpp"),
        "-o",
        str(tmp_path / "main"),
    ]
    _compile([*program, *found])
    said = subprocess.run([str(tmp_path / "main")], capture_output=True, text=True, check=True).stdout
    assert said[2:] == "1 1 42 1 1 1"
    assert said[0] == "-" or "-Wl,-z,now,-z,relro" not in flags  # read-only since it was loaded


def _compile(arguments: list[str]) -> None:
    done = subprocess.run(["g++", "-std=c++20", *arguments], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
