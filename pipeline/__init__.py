"""The library: pure estimation and privacy at the bottom, the command line at the top.

- `errors`, `types`, `linalg`, `words`, `settings`: the ground; `settings` reads the environment.
- `losses`, `privacy`, `trust`: values and bounds; laws, mechanisms, events; keys and MACs.
- `study`: what a study file says. `records`: records to numbers. `release`: what a window is asked.
- `estimators`: what estimates and states are. `methods`: each way of estimating, behind one seam.
- `messages`: what travels. `study_file`: reading a study. `stream`: payloads in, estimates out.
- `prediction`, `learning`, `simulate`, `backtest`: what estimates are used and tested for.
- `api`: what programs call. `page`, `cli`: what people see.

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
