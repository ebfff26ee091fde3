"""Processes of a run: started so that none outlives it, and their processor time from /proc."""

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
    """What kept a contender from showing a figure."""


class Missing(Exception):
    """What a contender needs and is not to be had here."""


def micros():
    """By the clock that all processes of a machine share."""
    return time.time_ns() // 1_000


def _end_with_parent():
    LIBC.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def start(arguments, log, **options):
    """In a session of its own, without input; what it prints goes to the log unless something else is said."""
    options = {"stdin": subprocess.DEVNULL, "stdout": log, "stderr": log, "text": True} | options
    return subprocess.Popen(arguments, start_new_session=True, preexec_fn=_end_with_parent, **options)


def stop(process, by=signal.SIGTERM, patience=30):
    """Ask it to end; then end it, and whatever of its session is left."""
    if process.poll() is None:
        process.send_signal(by)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(patience)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def run(arguments, log, patience=900, **options):
    """Run to the end. Returns what it printed, and the processor time in microseconds of it and its children."""
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
    """The last lines of a log, for a message."""
    said = Path(log.name).read_text(errors="replace").strip().splitlines()[-lines:]
    return ":\n    " + "\n    ".join(said) if said else ""


def wait_for(what, patience, done, every=0.01):
    """Wait until it is done; what `done` returns stands for how far it has come, True for the end."""
    seen, since = None, time.monotonic()
    while (now := done()) is not True:
        if now != seen:
            seen, since = now, time.monotonic()
        elif time.monotonic() - since > patience:
            raise Failure(f"{what}: nothing more within {patience} s (last seen: {seen})")
        time.sleep(every)


def _accounts():
    """Of each process: parent, and its time with that of its children that ended."""
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                fields = (entry / "stat").read_text(errors="replace").rpartition(")")[2].split()
            except OSError:
                continue  # It ended.
            yield int(entry.name), int(fields[1]), sum(map(int, fields[11:15])) * TICK_MICROS


def tree_micros(*roots):
    """The processor time so far of each of these processes with all that it started."""
    accounts = {pid: (parent, used) for pid, parent, used in _accounts()}

    def belongs(pid, root):
        while pid != root:
            if pid not in accounts:
                return False
            pid = accounts[pid][0]
        return True

    return [sum(used for pid, (_, used) in accounts.items() if belongs(pid, root)) for root in roots]


def machine_micros():
    """User and system time of all processors, whoever they worked for."""
    user, nice, system, _idle, _iowait, irq, softirq = map(int, Path("/proc/stat").read_text().split()[1:8])
    return (user + nice + system + irq + softirq) * TICK_MICROS
