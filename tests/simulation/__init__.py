"""A deterministic simulation of clients, log, workers and state, with crashes at every step.

::

    clock     an event loop whose time jumps to the next thing that is due
    standins  Kafka and Redis in this process: for the simulation alone
    real      the same seams on a real Kafka and Redis
    world     clients and workers as tasks, and who dies when
    checks    what must hold at the end
    planted   faults that the checks must find
"""
