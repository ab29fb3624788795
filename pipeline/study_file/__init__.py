"""Study files: read and checked with the study's method, written, and edited."""
