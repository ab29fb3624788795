"""When a window may begin and leave, and when the next model is due.

- `policy`: what a policy of windows is told and what it may say; the rule of today.
- `rhythm`: when the models of a study follow one another.
"""
