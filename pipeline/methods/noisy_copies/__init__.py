"""Noisy copies of site estimates, merged by EM (INFEMBLER)."""
