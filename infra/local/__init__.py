"""A real Kafka and a real Redis on this machine, without Docker.

::

    runtime     LocalRuntime: up, down, status, logs, kill, restart
      state     what is remembered between commands, and the locks
      services  the two servers: settings, command, does it answer
        jars    Kafka's jars, checked against jars.sha256
      processes child processes by pid and start time
      logs      the end of a log, and why a service died
      ports     free loopback ports, and one question to who listens
      programs  where the operator keeps the programs it runs, and a Java that runs Kafka
    supervise   keep a runtime up: restart what dies
"""

from infra.local.download import ProgramPaths
from infra.local.runtime import Addresses, LocalRuntime, ServiceStatus, supervise

__all__ = ["Addresses", "LocalRuntime", "ProgramPaths", "ServiceStatus", "supervise"]
