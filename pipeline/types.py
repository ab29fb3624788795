"""Array types that every module shares."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

#: A float64 array of one dimension.
Vector = NDArray[np.float64]
#: A float64 array of two dimensions.
Matrix = NDArray[np.float64]
#: An int64 array; its shape is stated where it is used.
Integers = NDArray[np.int64]
