"""What every loss and source must keep; `pipeline/methods/checks.py` has it of methods."""
