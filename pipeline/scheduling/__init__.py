"""When a window may leave a client, if it may leave at all.

- `policy`: what a policy is told and what it may say; the rule of today.
"""
