"""This machine: its programs, free ports and description."""

import os
import platform
import random
import re
import shutil
import socket
import subprocess
from pathlib import Path

from kit.processes import Missing

REPOSITORY = Path(__file__).resolve().parents[3]


def directory_of(program, package, pattern):
    """Returns the directory of a server's programs. Installs its Debian package if possible."""
    def find():
        # Debian's programs in PATH may be wrappers that change user and directory, so the pattern comes first.
        places = sorted(Path("/").glob(pattern.lstrip("/")), reverse=True)
        places += map(Path, os.get_exec_path())
        return next((place for place in places if os.access(place / program, os.X_OK)), None)

    if not find():
        subprocess.run([REPOSITORY / "scripts/setup", "packages", package], check=False)
    return find() or _missing(f"{program} is missing: install {package}")


def program(name, remedy):
    """Returns the path of a program in PATH."""
    return shutil.which(name) or _missing(f"{name} is missing: {remedy}")


def _missing(reason):
    raise Missing(reason)


def slug(name):
    """Returns the name in a form that files and databases can have."""
    return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")


def free_port():
    """Returns a free loopback port below the range that the kernel uses for outgoing connections."""
    while True:
        port = random.randrange(15_000, 32_000)
        with socket.socket() as candidate:
            try:
                candidate.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port


def description():
    model = next((line.split(":", 1)[1].strip() for line in Path("/proc/cpuinfo").read_text().splitlines()
                  if line.startswith("model name")), platform.machine())
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / (1 << 30)
    return {"processors": os.cpu_count(), "model": model, "memory_gib": round(memory),
            "kernel": platform.release()}


def load():
    """Returns the load average of the last minute."""
    return round(os.getloadavg()[0], 2)
