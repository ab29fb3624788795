"""The style sheet of a report: legible on a screen, on a phone and on paper."""

STYLE = """
:root { --ink: #1b1f24; --soft: #57606a; --line: #d8dee4; --wash: #f6f8fa; --mark: #0072b2; }
* { box-sizing: border-box; }
body { margin: 0; color: var(--ink); background: #fff; line-height: 1.5;
  font: 16px/1.5 system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", sans-serif; }
main { max-width: 68rem; margin: 0 auto; padding: 2.5rem 1.5rem 4rem; }
h1 { font-size: 1.9rem; line-height: 1.2; margin: 0 0 1rem; }
h2 { font-size: 1.2rem; margin: 0 0 .6rem; }
section { margin-top: 2.2rem; }
.facts { display: flex; flex-wrap: wrap; gap: .4rem 2rem; margin: 0 0 1.2rem; }
.facts dt { color: var(--soft); font-size: .8rem; }
.facts dd { margin: 0; font-variant-numeric: tabular-nums; }
.notice { border-left: 4px solid #d55e00; background: #fff4ec; padding: .6rem .9rem;
  margin: .6rem 0; font-size: .92rem; }
.advice { border: 1px solid var(--line); border-left: 4px solid var(--mark);
  background: var(--wash); padding: 1rem 1.2rem; border-radius: 4px; }
.advice p, .advice ul { margin: .4rem 0; max-width: 60rem; }
.choice { font-size: 1.25rem; font-weight: 600; }
.wide { overflow-x: auto; }
table { border-collapse: collapse; font-size: .9rem; font-variant-numeric: tabular-nums; }
th { text-align: right; vertical-align: bottom; font-weight: 600; color: var(--soft);
  border-bottom: 2px solid var(--line); padding: .3rem .8rem; max-width: 10rem; }
td { text-align: right; border-bottom: 1px solid var(--line); padding: .3rem .8rem;
  white-space: nowrap; }
th:first-child, td:first-child { text-align: left; padding-left: .3rem; }
tr.taken td { background: #e7f2f9; font-weight: 600; }
figure { margin: 0 0 1.2rem; }
figure svg { display: block; max-width: 100%; height: auto; }
figcaption, .small { color: var(--soft); font-size: .85rem; max-width: 56rem; }

.pair { display: grid; grid-template-columns: repeat(auto-fit, minmax(24rem, 1fr)); gap: 1.5rem; }
footer { margin-top: 3rem; padding-top: .8rem; border-top: 1px solid var(--line);
  color: var(--soft); font-size: .8rem; }
@media (max-width: 40rem) { .pair { grid-template-columns: 1fr; } main { padding: 1.2rem .9rem; } }
@media print { main { max-width: none; padding: 0; } section { break-inside: avoid; } }
"""
