"""The live page of a study: what is published, read and shown, and nothing else.

`reading` follows the topics in threads, `content` holds what they have seen, `server` hands it to
browsers. The files of `assets` are served as they are; `assets.sha256` has the sums of uPlot 1.6.32
(MIT, its licence beside it), which draws the chart.
"""
