"""What programs and notebooks use: `import veilstream` offers its names, the commands print them.

- `records`, `fitting`, `results`: from files, frames or arrays to an estimate and a picture.
- `feed`, `reading`: estimates from Kafka, as an iterator.
- `checking`: what a study means, before it runs.
- `table`, `words`: an estimate as text.
"""
