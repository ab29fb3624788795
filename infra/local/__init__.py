"""A real Kafka and a real Redis on this machine, without Docker.

::

    runtime     LocalRuntime: up, down, status, logs, kill, restart
      status    where clients connect, and how each service is
      state     what is remembered between commands, and the locks
      services  the two servers: settings, command, does it answer
        java    a Java that runs Kafka
        jars    Kafka's jars, checked against jars.sha256
        probes  one question to a server over a socket
      processes child processes by pid and start time
      logs      the end of a log, and why a service died
      ports     free loopback ports
      programs  where the operator keeps the programs it runs
    supervise   keep a runtime up: restart what dies
"""

from infra.local.programs import ProgramPaths
from infra.local.runtime import LocalRuntime
from infra.local.status import Addresses, ServiceStatus
from infra.local.supervise import supervise

__all__ = ["Addresses", "LocalRuntime", "ProgramPaths", "ServiceStatus", "supervise"]
