"""The public constants of a study that a loss may need."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Terms:
    """What a study file says about its loss; each loss reads what is its own.

    q, smoothing: Tail and ramp of generalised DWD; a smoothing of None lets the loss choose.
    noised: Whether slopes and curvatures will carry noise: they must then have public bounds, and
        the smaller these are the smaller the noise.
    residual_bound: Largest residual that a regression of a number counts in full, in units of the
        encoded response; None for the default.
    tau: Level of an expectile, in (0, 1).
    largest: Largest count that the public range allows, >= 1.
    """

    q: float = 1.0
    smoothing: float | None = None
    noised: bool = True
    residual_bound: float | None = None
    tau: float = 0.5
    largest: float = 1.0
