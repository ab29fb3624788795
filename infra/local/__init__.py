"""A real Kafka and a real Redis on this machine, without Docker.

`runtime` starts, watches and ends both; `services` says how each is started; `processes` are the
child processes, their ports and logs; `download` finds Java and Kafka's jars, by checksum.
"""

from infra.local.download import ProgramPaths
from infra.local.runtime import Addresses, LocalRuntime, ServiceStatus, supervise

__all__ = ["Addresses", "LocalRuntime", "ProgramPaths", "ServiceStatus", "supervise"]
