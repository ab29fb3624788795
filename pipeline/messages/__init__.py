"""What travels over Kafka, and nothing about how.

- `form`: the bytes of a release. `release`: writing and reading one. `incoming`: judging a batch.
- `model`, `estimate`: JSON for people and programs.
- `model_file`: an estimate with all that a prediction needs, JSON in a file.
- `envelope`: CloudEvents headers.
- `topics`: names, keys, retention and compaction of every topic of a study.
- `schemas/`: the published JSON Schemas.
"""
