"""A systemd that is booted in a container over this machine's files, and the units of deploy/ in it.

Stage: tests. What the container writes is in memory and gone with it: its root is an overlay within a mount
namespace of its own. The network is this machine's. Needs root, Debian's systemd-container, and overlayfs.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
NEEDED = ("systemd-nspawn", "nsenter", "unshare", "systemd-analyze")
HIDDEN = ("/home/", "/root/", "/tmp/")
WAIT_S = 90.0
BOOT = """
set -e
mount -t tmpfs tmpfs {layers}
mkdir {layers}/upper {layers}/work {layers}/root
mount -t overlay overlay -o lowerdir=/,upperdir={layers}/upper,workdir={layers}/work {layers}/root
cd {layers}/root
rm -rf etc/systemd/system/* var/log/journal
cp {units}/* etc/systemd/system/
mkdir -p opt/rankmem/bin opt/python shared/memory etc/rankmem
ln -s {prefix}/lib opt/rankmem/lib
ln -s /opt/python/bin/python{version} opt/rankmem/bin/python
printf 'home = /opt/python/bin\n' >opt/rankmem/pyvenv.cfg
printf '#!/opt/rankmem/bin/python\nfrom rankmem_cli.main import main\nmain()\n' >opt/rankmem/bin/rankmem
chmod +x opt/rankmem/bin/rankmem
printf '[Manager]\nDefaultEnvironment=LD_LIBRARY_PATH=/opt/python/lib\n' >etc/systemd/system.conf
echo rankmem:x:987:987::/nonexistent:/usr/sbin/nologin >>etc/passwd
echo rankmem:x:987: >>etc/group
[ ! -d {secrets} ] || cp {secrets}/* etc/rankmem/
chown -R 987:987 shared/memory etc/rankmem
cd /
exec systemd-nspawn --quiet --register=no --keep-unit --directory={layers}/root --bind-ro={repository} \\
    --bind-ro={prefix} --bind-ro={python}:/opt/python --machine=rankmem-test --boot systemd.unit=basic.target
"""


def missing() -> str:
    """Why there is no such container here; empty: nothing is missing."""
    if os.getuid() != 0:
        return "needs root"
    if any(str(path).startswith(HIDDEN) for path in (ROOT, sys.prefix)):
        return f"{ROOT} or {sys.prefix} is in a folder that the units cannot see"
    absent = [name for name in NEEDED if not shutil.which(name)]
    return f"needs Debian's systemd-container: no {absent[0]}" if absent else ""


class Booted:
    """The container. Use :func:`booted`."""

    def __init__(self, init: int) -> None:
        self.init = init

    def run(self, *command: str, check: bool = True) -> str:
        """Runs a command in it; what it said."""
        entered = ["nsenter", "-t", str(self.init), "-m", "-p", "-u", "-i", "-C", *command]
        done = subprocess.run(entered, capture_output=True, text=True, timeout=WAIT_S * 2, check=False)
        assert done.returncode == 0 or not check, done.stdout + done.stderr
        return done.stdout + done.stderr

    def property(self, unit: str, name: str) -> str:
        """What systemd says of a unit."""
        return self.run("systemctl", "show", unit, f"--property={name}", "--value").strip()

    def start(self, unit: str) -> None:
        """Starts a unit; with its journal where that fails."""
        said = self.run("systemctl", "start", unit, check=False)
        assert "failed" not in said.lower(), said + self.run(
            "journalctl", "--no-pager", "-u", unit, "-n", "40"
        )


@contextmanager
def booted(folder: Path, units: dict[str, str], secrets: Path | None = None) -> Iterator[Booted]:
    """The container, until the end.

    Args:
        folder: for its layers and the units.
        units: texts by the file's name.
        secrets: a folder whose files are at /etc/rankmem there.
    """
    for name in ("layers", "units"):
        (folder / name).mkdir()
    for name, text in units.items():
        (folder / "units" / name).write_text(text)
    script = BOOT.format(
        layers=folder / "layers", units=folder / "units", python=sys.base_prefix, repository=ROOT,
        version=f"{sys.version_info.major}.{sys.version_info.minor}",
        prefix=sys.prefix, secrets=secrets or folder / "none",
    )  # fmt: skip
    command = ["unshare", "--mount", "--propagation", "private", "sh", "-c", script]
    with (folder / "console").open("w") as console:
        running = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=console, stderr=console)
    try:
        yield Booted(_init_of(running, folder / "console"))
    finally:
        running.terminate()  # systemd-nspawn has its systemd power off
        running.wait(WAIT_S)


def _init_of(running: subprocess.Popen[bytes], console: Path) -> int:
    """The process 1 of the container, once it has booted."""
    until_s = time.monotonic() + WAIT_S
    children = Path(f"/proc/{running.pid}/task/{running.pid}/children")
    while running.poll() is None and time.monotonic() < until_s:
        found = children.read_text().split()
        if found and "Basic System" in console.read_text(errors="replace"):
            return int(found[0])
        time.sleep(0.25)
    raise AssertionError("systemd did not boot: " + console.read_text(errors="replace")[-2000:])
