"""What every loss, mechanism and source must keep; methods have `pipeline/methods/checks.py`."""
