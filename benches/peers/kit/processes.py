"""Processes of a run, none of which outlives it, and their processor time from /proc."""

import contextlib
import ctypes
import os
import resource
import signal
import subprocess
import time
from pathlib import Path

TICK_MICROS = 1_000_000 // os.sysconf("SC_CLK_TCK")
PR_SET_PDEATHSIG = 1
LIBC = ctypes.CDLL(None, use_errno=True)


class Failure(Exception):
    """The reason why a run of a contender has no figures."""


class Missing(Exception):
    """A requirement of a contender that is missing on this machine."""


def micros():
    """Returns the system's clock, which all processes share, in microseconds."""
    return time.time_ns() // 1_000


def _end_with_parent():
    LIBC.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def start(arguments, log, **options):
    """Starts a process in its own session, without input. Its output goes to the log unless options change that."""
    options = {"stdin": subprocess.DEVNULL, "stdout": log, "stderr": log, "text": True} | options
    return subprocess.Popen(arguments, start_new_session=True, preexec_fn=_end_with_parent, **options)


def stop(process, by=signal.SIGTERM, patience=30):
    """Asks a process to end, then kills it and the rest of its session."""
    if process.poll() is None:
        process.send_signal(by)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(patience)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def run(arguments, log, patience=900, **options):
    """Runs a program to its end. Returns its output, and the processor time in microseconds of it and its children."""
    what = f"{Path(arguments[0]).name} {' '.join(map(str, arguments[1:3]))}"
    before = _ended_children_micros()
    process = start(arguments, log, **({"stdout": subprocess.PIPE} | options))
    try:
        printed, _ = process.communicate(timeout=patience)
    except subprocess.TimeoutExpired:
        raise Failure(f"{what} took over {patience} s") from None
    finally:
        stop(process, by=signal.SIGKILL)
    if process.returncode:
        raise Failure(f"{what} failed{tail(log)}")
    return printed, _ended_children_micros() - before


def _ended_children_micros():
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return int((used.ru_utime + used.ru_stime) * 1_000_000)


def tail(log, lines=8):
    """Returns the last lines of a log, for a message."""
    said = Path(log.name).read_text(errors="replace").strip().splitlines()[-lines:]
    return ":\n    " + "\n    ".join(said) if said else ""


def wait_for(what, patience, done, every=0.01):
    """Waits until `done` returns True. Fails if its value does not change for `patience` seconds."""
    seen, since = None, time.monotonic()
    while (now := done()) is not True:
        if now != seen:
            seen, since = now, time.monotonic()
        elif time.monotonic() - since > patience:
            raise Failure(f"{what}: no progress within {patience} s (last value: {seen})")
        time.sleep(every)


def _accounts():
    """Yields each process with its parent and its processor time, ended children included."""
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                fields = (entry / "stat").read_text(errors="replace").rpartition(")")[2].split()
            except OSError:
                continue  # It ended.
            yield int(entry.name), int(fields[1]), sum(map(int, fields[11:15])) * TICK_MICROS


def tree_micros(*roots):
    """Returns the processor time so far of each of these processes, its descendants included."""
    accounts = {pid: (parent, used) for pid, parent, used in _accounts()}

    def belongs(pid, root):
        while pid != root:
            if pid not in accounts:
                return False
            pid = accounts[pid][0]
        return True

    return [sum(used for pid, (_, used) in accounts.items() if belongs(pid, root)) for root in roots]


def machine_micros():
    """Returns the user and system time of all processors."""
    user, nice, system, _idle, _iowait, irq, softirq = map(int, Path("/proc/stat").read_text().split()[1:8])
    return (user + nice + system + irq + softirq) * TICK_MICROS
