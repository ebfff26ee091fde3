"""A private RabbitMQ node without plugins, with its own directories, ports, cookie and epmd. It ends with the run."""

import os
import secrets
import socket
import subprocess

from kit import machine, processes
from kit.processes import Failure

NODE, USER = "jobwire@localhost", "jobwire"
SETTINGS = """\
listeners.tcp.1 = 127.0.0.1:{port}
loopback_users = none
default_user = {user}
default_pass = {password}
vm_memory_high_watermark.absolute = 2GB
disk_free_limit.absolute = 50MB
log.file = false
log.console = true
log.console.level = warning
"""


class RabbitMq:
    """The node, and the virtual hosts of the runs."""

    def __init__(self, directory, log):
        self.directory, self.log = directory / "rabbitmq", log
        self.programs = machine.directory_of("rabbitmq-server", "rabbitmq-server", "/usr/lib/rabbitmq/bin")
        self.port, self.password = machine.free_port(), secrets.token_hex(16)
        self.epmd_port, self.distribution_port = machine.free_port(), machine.free_port()
        self.made = 0
        self.server = self.epmd = None

    def start(self):
        self.directory.mkdir(mode=0o700)
        cookie = self.directory / ".erlang.cookie"
        cookie.write_text(self.password)
        cookie.chmod(0o400)
        (self.directory / "enabled_plugins").write_text("[].\n")
        (self.directory / "rabbitmq.conf").write_text(
            SETTINGS.format(port=self.port, user=USER, password=self.password))
        # Otherwise Erlang starts an epmd that outlives the node.
        epmd = machine.directory_of("epmd", "erlang-base", "/usr/lib/erlang/erts-*/bin")
        self.epmd = processes.start([epmd / "epmd", "-address", "127.0.0.1", "-port", str(self.epmd_port)], self.log)
        self.server = processes.start([self.programs / "rabbitmq-server", "-noinput"], self.log,
                                      cwd=self.directory, env=self._environment())
        processes.wait_for("RabbitMQ", 120, self._answers, every=0.5)
        return self

    def _environment(self):
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("RABBITMQ_", "ERL_"))}
        here = self.directory
        return kept | {
            "HOME": str(here),
            "ERL_EPMD_PORT": str(self.epmd_port),
            "RABBITMQ_NODENAME": NODE,
            "RABBITMQ_CONF_ENV_FILE": str(here / "none"),
            "RABBITMQ_CONFIG_FILE": str(here / "rabbitmq.conf"),
            "RABBITMQ_ADVANCED_CONFIG_FILE": str(here / "none"),
            "RABBITMQ_ENABLED_PLUGINS_FILE": str(here / "enabled_plugins"),
            "RABBITMQ_MNESIA_BASE": str(here / "mnesia"),
            "RABBITMQ_LOG_BASE": str(here / "log"),
            "RABBITMQ_PID_FILE": str(here / "pid"),
            "RABBITMQ_DIST_PORT": str(self.distribution_port),
            # The script execs the node instead of supervising it.
            "RABBITMQ_ALLOW_INPUT": "1",
            "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS":
                "-kernel inet_dist_use_interface {127,0,0,1} -start_epmd false",
            "RABBITMQ_CTL_ERL_ARGS": "-kernel inet_dist_use_interface {127,0,0,1}",
        }

    def _answers(self):
        if self.server.poll() is not None:
            raise Failure(f"RabbitMQ ended unexpectedly{processes.tail(self.log)}")
        try:
            with socket.create_connection(("127.0.0.1", self.port), 1) as connection:
                connection.settimeout(5)
                connection.sendall(b"AMQP\x00\x00\x09\x01")
                return len(connection.recv(1)) == 1
        except OSError:
            return False

    def stop(self):
        for process in (self.server, self.epmd):
            if process:
                # Its data are not kept.
                processes.stop(process, by=processes.signal.SIGKILL)

    def ctl(self, *arguments):
        said = subprocess.run([self.programs / "rabbitmqctl", "--quiet", *arguments], check=False, text=True,
                              capture_output=True, cwd=self.directory, env=self._environment())
        if said.returncode:
            raise Failure(f"rabbitmqctl {arguments[0]}: {said.stderr.strip()}")
        return said.stdout.strip()

    def create_vhost(self):
        self.made += 1
        vhost = f"run-{self.made}"
        self.ctl("add_vhost", vhost)
        self.ctl("set_permissions", "-p", vhost, USER, ".*", ".*", ".*")
        return vhost

    def delete_vhost(self, vhost):
        self.ctl("delete_vhost", vhost)

    def url(self, vhost):
        return f"amqp://{USER}:{self.password}@127.0.0.1:{self.port}/{vhost}"

    def waiting(self, vhost):
        """Returns the number of messages that wait or are not acknowledged."""
        return sum(map(int, self.ctl("list_queues", "-p", vhost, "messages", "--no-table-headers").split()))

    def version(self):
        return self.ctl("version").splitlines()[-1]
