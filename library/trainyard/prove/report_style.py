"""The style of the report, for wide and narrow screens, light and dark, and for paper."""

STYLE = """
:root { color-scheme: light dark; --ground: #f6f7f9; --card: #ffffff; --ink: #1c2430;
  --quiet: #5b6675; --line: #e1e5ea; --good: #1a7f4b; --bad: #c0362c; --wait: #96690a; }
@media (prefers-color-scheme: dark) { :root { --ground: #12161c; --card: #1a2029; --ink: #e6eaf0;
  --quiet: #9aa4b2; --line: #2c3440; --good: #4cc38a; --bad: #ff7b72; --wait: #e3b341; } }
* { box-sizing: border-box; }
body { margin: 0; background: var(--ground); color: var(--ink);
  font: 15px/1.5 system-ui, sans-serif; }
main { max-width: 960px; margin: 0 auto; padding: 32px 20px 64px; }
header, section { background: var(--card); border: 1px solid var(--line); border-radius: 10px;
  padding: 20px 24px; margin-bottom: 16px; }
.kicker { margin: 0; color: var(--quiet); font-size: 13px; }
h1 { margin: 2px 0 14px; font-size: 26px; line-height: 1.2; }
h2 { margin: 0 0 4px; font-size: 18px; }
section > p { margin: 0 0 12px; color: var(--quiet); max-width: 70ch; }
h1.passed { color: var(--good); } h1.failed { color: var(--bad); }
h1.not_run { color: var(--wait); }
dl { display: flex; flex-wrap: wrap; gap: 8px 32px; margin: 0 0 14px; }
dt { color: var(--quiet); font-size: 13px; } dd { margin: 0; }
.findings { border-color: var(--bad); } .findings ul { margin: 6px 0 0; padding-left: 20px; }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; width: 100%; font-size: 14px; }
th { text-align: left; font-weight: 600; color: var(--quiet); font-size: 13px; }
th, td { padding: 6px 14px 6px 0; border-bottom: 1px solid var(--line); vertical-align: top;
  white-space: nowrap; }
td:last-child { white-space: normal; min-width: 14ch; }
.wide td:last-child { min-width: 36ch; }
tr:last-child td { border-bottom: 0; }
.number { font-variant-numeric: tabular-nums; }
details { border-top: 1px solid var(--line); padding: 8px 0; }
summary { display: flex; gap: 2px 12px; align-items: baseline; flex-wrap: wrap;
  cursor: pointer; list-style: none; }
summary::-webkit-details-marker { display: none; }
summary:focus-visible { outline: 2px solid var(--quiet); outline-offset: 2px; }
.chip { min-width: 92px; text-align: center; font-size: 12px; border: 1px solid currentColor;
  border-radius: 99px; padding: 0 10px; }
.chip.passed { color: var(--good); } .chip.failed { color: var(--bad); }
.chip.skipped { color: var(--quiet); } .chip.not_run { color: var(--wait); }
.headline { color: var(--quiet); font-size: 13px; font-variant-numeric: tabular-nums; }
.seconds { margin-left: auto; color: var(--quiet); font-variant-numeric: tabular-nums;
  white-space: nowrap; }
.why { color: var(--quiet); margin: 8px 0; white-space: pre-wrap; overflow-wrap: anywhere; }
details[open] .chip.failed ~ * { font-weight: 600; }
figure { margin: 12px 0; } figure svg { width: 100%; height: auto; display: block; }
pre { background: var(--ground); border: 1px solid var(--line); border-radius: 6px;
  padding: 8px 12px; overflow-x: auto; font-size: 13px; margin: 10px 0 4px; }
footer { color: var(--quiet); font-size: 13px; padding: 0 4px; }
@media (max-width: 560px) { main { padding: 12px 10px 40px; }
  header, section { padding: 16px 14px; } h1 { font-size: 22px; } .chip { min-width: 84px; } }
@media print { body { background: none; } header, section { break-inside: avoid; } }
"""
