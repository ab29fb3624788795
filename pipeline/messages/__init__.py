"""What travels over Kafka, and nothing about how.

- `release`: the bytes of a release, written, read, and judged a batch at a time.
- `authentic`: whether a release is believed. `admission`: who may release, and the study's keys.
- `model`, `estimate`, `spend`, `results`: JSON for people and programs.
- `model_file`: an estimate with all that a prediction needs, JSON in a file.
- `envelope`: CloudEvents headers. `topics`: names, keys, retention and compaction of every topic.
- `schemas/`: the published JSON Schemas.
"""
