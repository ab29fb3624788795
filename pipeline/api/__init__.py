"""What programs and notebooks use: `import veilstream` offers its names, the commands print them.

- `records`, `fitting`, `result`: from files, frames or arrays to an estimate and a picture.
- `feed`: estimates from Kafka, as an iterator.
- `check`, `planning`, `sample`: what a study means, before it runs.
- `table`: an estimate as text, and when intervals come.
"""
