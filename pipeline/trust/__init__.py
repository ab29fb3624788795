"""Who is believed: keys, the MAC of a release, the ticket of a model, signed words.

Pure functions over bytes; files of keys are `infra.keyring`, topics are the agents' and producers'.
"""
