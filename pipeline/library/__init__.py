"""What programs and notebooks use: `import veilstream` offers its names, the commands print them.

- `records`, `fitting`, `results`: from files, frames or arrays to an estimate, and what it says.
- `feed`, `reading`: estimates from Kafka, as an iterator.
- `checking`: what a study means, before it runs.
- `table`, `words`, `picture`: an estimate as text and drawn.
"""
