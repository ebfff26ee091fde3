"""Celery with RabbitMQ as a contender of the comparison kit (../README.md describes each command).

Settings, from docs.celeryq.dev/en/stable/userguide/optimizing.html and .../configuration.html: prefork with a process
for each processor (the default), prefetch raised to 128 a process ("lots of short tasks"), no results, no events, no
rate limits, no gossip, mingle or remote control. Messages are persistent (the default), in a durable classic queue.
Tasks are acknowledged late: with the default, a worker that dies loses its running tasks, unlike every other
contender. The publisher does not wait for confirms (the default).
"""

import functools
import multiprocessing
import os
import struct
import sys
import time
from pathlib import Path

from celery import Celery
from celery.signals import worker_ready

app = Celery("peer", broker=os.environ["AMQP_URL"])
app.conf.update(
    broker_connection_retry_on_startup=True,
    task_acks_late=True,
    task_ignore_result=True,
    worker_disable_rate_limits=True,
    worker_enable_remote_control=False,
    worker_prefetch_multiplier=128,
    worker_send_task_events=False,
)

def micros():
    return time.time_ns() // 1_000


@functools.cache
def starts():
    return os.open(os.environ["STARTS"], os.O_CREAT | os.O_APPEND | os.O_WRONLY, 0o644)


@app.task(name="noop")
def noop(n):
    """Appends the start to the file at once: 4 bytes of number, 8 of microseconds, little-endian."""
    os.write(starts(), struct.pack("<Iq", n, micros()))


def publish(numbers):
    with app.producer_or_acquire() as producer:
        for n in numbers:
            noop.apply_async((n,), producer=producer)


def setup():
    """Declares the queue."""
    with app.connection_for_write() as connection:
        app.amqp.queues["celery"].bind(connection.default_channel).declare()


def fill(jobs):
    publish(range(int(jobs)))


def work(path, _profile):
    """Runs jobs until the process is asked to stop."""
    os.environ["STARTS"] = path
    # Written directly: Celery turns printed lines into log lines.
    worker_ready.connect(lambda **_: os.write(1, b"ready\n"), weak=False)
    app.worker_main(["worker", "--loglevel=WARNING", "--pool=prefork", f"--concurrency={os.cpu_count()}",
                     "--without-gossip", "--without-mingle", "--without-heartbeat"])


def flow(seconds, clients, batch, ahead, path, _profile):
    """Creates jobs with several client processes as fast as possible, but pauses while too many jobs wait."""
    following = multiprocessing.Value("q", 0)
    began = micros()

    def client():
        while micros() - began < int(seconds) * 1_000_000:
            started = Path(path).stat().st_size // 12 if Path(path).exists() else 0
            if following.value - started >= int(ahead):
                time.sleep(0.001)
                continue
            with following.get_lock():
                first = following.value
                following.value += int(batch)
            publish(range(first, first + int(batch)))

    # No connection is open before the fork: each client opens its own.
    all_clients = [multiprocessing.get_context("fork").Process(target=client) for _ in range(int(clients))]
    for one in all_clients:
        one.start()
    for one in all_clients:
        one.join()
        if one.exitcode:
            sys.exit("a client failed")
    print(f"began {began}\ncreated {following.value}")


def arrive(rate, jobs, path, _profile):
    """Creates jobs one after the other at a fixed rate. A late job keeps its due time."""
    with app.producer_or_acquire() as producer, Path(path).open("wb") as commits:
        producer.connection.ensure_connection()
        began = micros()
        for n in range(int(jobs)):
            due = began + n * 1_000_000 // int(rate)
            time.sleep(max(0, due - micros()) / 1_000_000)
            noop.apply_async((n,), producer=producer)
            commits.write(struct.pack("<Iqq", n, due, micros()))


if __name__ == "__main__":
    {"setup": setup, "fill": fill, "work": work, "flow": flow, "arrive": arrive}[sys.argv[1]](*sys.argv[2:])
