"""What losses, mechanisms and sources must keep; methods: `pipeline/simulate/method_checks.py`."""
