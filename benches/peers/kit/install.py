"""Installs the contenders' packages, in the versions that this directory pins, into a directory outside the
repository. Installed packages are not fetched again."""

import hashlib
import os
import shutil
import subprocess
import sys
from pathlib import Path

from kit import machine
from kit.processes import Missing

HERE = Path(__file__).resolve().parents[1]


class Installer:
    """Each method returns the first words of a contender's command line, or raises `Missing` with the reason."""

    def __init__(self, directory):
        self.directory = directory

    def river(self):
        go = machine.program("go", "install Go (go.dev)")
        built = self.directory / "river"
        # Go itself detects changes.
        self._step("River", [go, "build", "-trimpath", "-buildvcs=false", "-mod=readonly", "-o", built, "."],
                   HERE / "river")
        return [built]

    def graphile_worker(self):
        npm = machine.program("npm", "install Node.js with npm (nodejs.org)")
        home = self.directory / "graphile-worker"
        self._once(home, ["package.json", "package-lock.json"], HERE / "graphile-worker", "graphile-worker",
                   lambda: [[npm, "ci", "--ignore-scripts", "--no-audit", "--no-fund"]])
        # Node.js looks for packages in the directory of the module.
        shutil.copy(HERE / "graphile-worker/peer.mjs", home)
        node = next(iter(home.glob("node_modules/node-linux-*/bin/node")), None)
        return [node or machine.program("node", "install Node.js 22.18 or newer"), home / "peer.mjs"]

    def celery(self):
        home = self.directory / "celery"
        python = home / "bin/python"
        self._once(home, ["requirements.txt"], HERE / "celery", "Celery", lambda: [
            [sys.executable, "-m", "venv", "--clear", home],
            [python, "-m", "pip", "install", "--quiet", "--no-deps", "-r", HERE / "celery/requirements.txt"]])
        return [python, HERE / "celery/peer.py"]

    def rust(self, program):
        cargo = _cargo()
        self._step(program, [cargo, "build", "--release", "--locked", "--bin", program,
                             "--target-dir", self.directory / "rust"], HERE / "rust")
        return [self.directory / "rust/release" / program]

    def jobwire(self):
        """Builds and returns the program of this checkout."""
        target = Path(os.environ.get("CARGO_TARGET_DIR", machine.REPOSITORY / "target"))
        self._step("Jobwire", [_cargo(), "build", "--release", "--locked", "-p", "jobwire-cli", "--bin", "jobwire"],
                   machine.REPOSITORY)
        return [target / "release/jobwire"]

    def _once(self, home, pins, source, name, steps):
        """Makes a directory anew, unless it was made completely from the same pins."""
        pinned = hashlib.sha256(b"".join((source / pin).read_bytes() for pin in pins)).hexdigest()
        done = home / "installed"
        if done.is_file() and done.read_text() == pinned:
            return
        shutil.rmtree(home, ignore_errors=True)
        home.mkdir(parents=True)
        for pin in pins:
            shutil.copy(source / pin, home)
        for step in steps():
            self._step(name, step, home)
        done.write_text(pinned)

    def _step(self, name, command, where):
        self.directory.mkdir(parents=True, exist_ok=True)
        print(f"Installing {name} ...", file=sys.stderr)
        done = subprocess.run(command, check=False, cwd=where, stdin=subprocess.DEVNULL, text=True,
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        if done.returncode:
            said = " ".join(done.stdout.strip().splitlines()[-3:])
            raise Missing(f"{Path(command[0]).name} {command[1]} failed: {said}")


def _cargo():
    home = Path(os.environ.get("CARGO_HOME", Path.home() / ".cargo"))
    return shutil.which("cargo") or shutil.which("cargo", path=home / "bin") or machine.program(
        "cargo", "install Rust (rustup.rs)")
