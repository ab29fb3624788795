"""What a client computes, pure: from records to a sealed release.

- `task`: bounds, lattices and noise of a study. `model`: the expansion point.
- `encode`: records to numbers, by `values` and `response`. `columns`: tables to numbers.
- `windows`: records to windows.
- `summarise`: a window to its sums. `privatise`: the only doors out.
"""
