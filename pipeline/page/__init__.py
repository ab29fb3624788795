"""The live page of a study: what is published, read and shown, and nothing else.

`content` holds what the topics have shown, `server` follows them in threads and hands it to
browsers. The files of `assets` are served as they are; `assets.sha256` has the sums of uPlot 1.6.32
(MIT, its licence beside it), which draws the chart.
"""
