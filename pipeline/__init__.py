"""The library: pure estimation and privacy at the bottom, the command line at the top.

- `errors`, `types`: the drawn error tree; the array types.
- `linalg`: packing of symmetric matrices, eigenvalue floor, guarded solves.
- `losses`: gdwd, logistic: value, slope, curvature and their public bounds.
- `privacy`: calibration (mu-GDP), lattice noise, mechanisms, the policy.
- `study`: the study file and its revision. `settings`: the only reader of the environment.
- `records`: records to numbers and windows. `release`: what is asked of a window, and its noise.
- `messages`: what travels: releases, models, estimates, dead letters, topics; the model file.
- `estimators`: the states that fold and the estimates they yield.
- `reducer`: payloads in, state out; pure.
- `offline`: the same functions in one process, without Kafka.
- `prediction`: the rule of an estimate. `learning`: an estimator for scikit-learn and River.
- `cli`: thin commands.

Importing this package opens no socket and reads no environment.
"""

import warnings

# kafka-python reads its own files in a way that Python 3.11 calls old: nobody here can mend it
warnings.filterwarnings(
    "ignore",
    r"(read_text|open_text|contents) is deprecated",
    DeprecationWarning,
    r"kafka\.|importlib\.resources\.",
)
