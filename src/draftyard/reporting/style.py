"""The report's style sheet: light, dark and print. Colours are Okabe and Ito's, told apart by colour-blind readers; nothing rests on colour alone."""

from __future__ import annotations

CSS = """
:root { color-scheme: light dark; --ink: #16191d; --soft: #57606a; --line: #dfe3e8; --rule: #c3cad2; --paper: #fff; --wash: #f5f7f9;
  --blue: #0072b2; --orange: #b26a00; --green: #00734f; --red: #b3431a; --purple: #8f4f7d; --blue-wash: #d9ebf7; --red-wash: #fbe3d9; }
@media screen and (prefers-color-scheme: dark) {
  :root { --ink: #e6e9ed; --soft: #9aa4af; --line: #2b323a; --rule: #46505b; --paper: #14181d; --wash: #1b2127;
    --blue: #56b4e9; --orange: #e69f00; --green: #35c397; --red: #ff8a5c; --purple: #d795bd; --blue-wash: #153a52; --red-wash: #4a2413; }
}
* { box-sizing: border-box; }
html { -webkit-text-size-adjust: 100%; scroll-behavior: smooth; }
body { margin: 0; color: var(--ink); background: var(--paper); font: 1rem/1.5 system-ui, -apple-system, "Segoe UI", Roboto, "DejaVu Sans", sans-serif; }
main, header { max-width: 1160px; margin: 0 auto; padding: 0 24px; }
header { padding-top: 36px; } main { padding-bottom: 48px; }
h1 { font-size: 1.75rem; line-height: 1.2; font-weight: 700; letter-spacing: -.015em; margin: 0; overflow-wrap: anywhere; }
.subject { color: var(--soft); margin: 4px 0 20px; max-width: none; }
h2 { font-size: 1.25rem; letter-spacing: -.01em; line-height: 1.3; margin: 0 0 8px; scroll-margin-top: 12px; overflow-wrap: anywhere; }
h3 { font-size: 1rem; margin: 20px 0 6px; overflow-wrap: anywhere; }
p { margin: 6px 0 12px; max-width: 78ch; overflow-wrap: anywhere; }
section { border-top: 1px solid var(--rule); padding: 26px 0 18px; }
.soft { color: var(--soft); } .note { font-size: .9rem; color: var(--soft); max-width: 96ch; }
code, .token, pre { font-family: ui-monospace, "SF Mono", Menlo, Consolas, "DejaVu Sans Mono", monospace; font-size: .86em; overflow-wrap: anywhere; }
a { color: var(--blue); text-underline-offset: 2px; }
nav { font-size: .88rem; margin: 0 0 22px; display: flex; flex-wrap: wrap; gap: 2px 16px; } nav a { padding: 3px 0; text-decoration: none; }
nav a:hover { text-decoration: underline; }
.pass, .green { --tone: var(--green); } .fail, .red { --tone: var(--red); } .warn { --tone: var(--orange); } .skipped, .info { --tone: var(--soft); }
.verdict { border-left: 6px solid var(--tone); padding: 16px 20px; margin: 0 0 20px; background: var(--wash); border-radius: 0 6px 6px 0;
  font-size: 1.28rem; line-height: 1.4; font-weight: 600; max-width: none; }
.verdict b { display: block; font-size: .78rem; letter-spacing: .07em; text-transform: uppercase; margin-bottom: 3px; color: var(--tone); }
.gate-note { display: block; font-size: .92rem; font-weight: 400; margin-top: 8px; color: var(--soft); }
.gate-note .badge { white-space: normal; font-weight: 600; }
.badge { color: var(--tone); font-weight: 700; white-space: nowrap; }
.tiles { display: grid; grid-template-columns: repeat(5, minmax(0, 1fr)); margin: 0 0 20px; padding: 0; list-style: none; border: 1px solid var(--line);
border-radius: 8px; }
.tiles li { padding: 14px 16px; min-width: 0; border-left: 1px solid var(--line); } .tiles li:first-child { border-left: 0; }
.tiles strong { display: block; font-size: 1.7rem; line-height: 1.2; letter-spacing: -.02em; font-variant-numeric: tabular-nums; }
.tiles span { font-size: .84rem; color: var(--soft); display: block; line-height: 1.4; }
.tiles .delta { color: var(--tone); font-weight: 600; white-space: normal; margin-top: 4px; } .tiles .delta span { display: inline; color: inherit; }
.name { font-weight: 600; } .name::first-letter { text-transform: uppercase; } .hint { margin-top: 3px; color: var(--red); font-size: .9rem; }
.gate th { width: 28%; font-weight: 400; } .gate tr > :nth-child(2) { width: 24%; } .gate .badge { display: inline-block; min-width: 5.4rem; }
.gate .name { display: inline-block; }
.proofs { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(290px, 100%), 1fr)); gap: 8px 28px; }
.proof { border-top: 3px solid var(--tone); padding: 10px 0 4px; min-width: 0; }
.proof h3 { margin: 0 0 6px; display: flex; justify-content: space-between; gap: 10px; }
.proof ul { list-style: none; margin: 0; padding: 0; font-size: .9rem; }
.proof li { padding: 5px 0 5px 22px; position: relative; border-top: 1px solid var(--line); overflow-wrap: anywhere; }
.proof li .badge { position: absolute; left: 2px; } .proof li.info { color: var(--soft); }
.figures { display: grid; grid-template-columns: repeat(auto-fill, minmax(min(320px, 100%), 1fr)); gap: 18px 28px; margin: 10px 0 16px; }
.panels { grid-template-columns: repeat(auto-fill, minmax(min(245px, 100%), 1fr)); gap: 16px 24px; }
.split { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(440px, 100%), 1fr)); gap: 8px 44px; align-items: start; }
.split h3 { margin-top: 8px; } figure + figure { margin-top: 8px; } .figures > figure + figure { margin-top: 0; }
figure { margin: 0; min-width: 0; break-inside: avoid; }
figcaption { font-size: .92rem; font-weight: 600; overflow-wrap: anywhere; line-height: 1.35; margin-bottom: 2px; }
.panels figcaption small { display: block; } figcaption small { font-weight: 400; color: var(--soft); font-variant-numeric: tabular-nums; }
svg { display: block; width: 100%; max-width: 440px; height: auto; }
svg text { font: 10.5px system-ui, "DejaVu Sans", sans-serif; fill: var(--soft); font-variant-numeric: tabular-nums; }
svg text.value { fill: var(--ink); font-size: 10px; } svg text.aside { font-size: 9.5px; }
svg .grid { stroke: var(--line); stroke-width: 1; } svg .mark { stroke: var(--soft); stroke-dasharray: 2 3; }
svg.key { display: inline-block; width: 26px; height: 10px; vertical-align: 1px; }
svg.meter { height: 10px; max-width: 340px; border-radius: 5px; } .track { fill: var(--line); }
.s1 { --series: var(--blue); } .s2 { --series: var(--orange); } .s3 { --series: var(--green); } .s4 { --series: var(--purple); }
.bar { fill: var(--series); stroke: var(--series); stroke-width: 1.4; } .bar.s2 { fill: var(--paper); } .bar.s3 { fill-opacity: .35; }
.line { fill: none; stroke: var(--series); stroke-width: 1.9; stroke-linejoin: round; }
.line.s2 { stroke-dasharray: 6 3; } .line.s3 { stroke-dasharray: 2 2.5; } .line.s4 { stroke-dasharray: 9 3 2 3; }
.dot { fill: var(--series); stroke: var(--paper); stroke-width: 1; } .dot.s2 { fill: var(--paper); stroke: var(--series); stroke-width: 2; }
.span { stroke: var(--series); stroke-width: 6; stroke-opacity: .28; stroke-linecap: round; }
.legend { display: flex; flex-wrap: wrap; gap: 4px 18px; font-size: .9rem; margin: 4px 0; max-width: none; }
figure .legend { font-size: .84rem; gap: 2px 14px; }
.swatch { display: inline-block; width: 14px; height: 12px; border: 2px solid var(--series); background: var(--series); vertical-align: -1px; }
.swatch.s2 { background: var(--paper); } .swatch.s3 { background: color-mix(in srgb, var(--series) 35%, var(--paper)); }
table { border-collapse: collapse; width: 100%; font-size: .92rem; margin: 8px 0 16px; font-variant-numeric: tabular-nums; }
caption { text-align: left; color: var(--soft); padding-bottom: 4px; overflow-wrap: anywhere; }
th, td { text-align: left; vertical-align: top; padding: 5px 14px 5px 0; border-bottom: 1px solid var(--line); overflow-wrap: anywhere; }
tbody tr:hover { background: var(--wash); }
thead th { font-size: .82rem; color: var(--soft); font-weight: 600; border-bottom: 1px solid var(--rule); vertical-align: bottom; }
tbody th { font-weight: 500; } .figures-right tr > :not(:first-child) { text-align: right; } .figures-right tr > :last-child { padding-right: 0; }
.figures-right { width: auto; min-width: min(100%, 520px); } .figures-right th, .figures-right td { overflow-wrap: normal; padding-right: 12px; }
.total tbody tr:first-child > * { font-weight: 700; } .total td { white-space: nowrap; }
.numbers tr > :nth-child(n+2):nth-child(-n+4) { text-align: right; white-space: nowrap; }
dl { display: grid; grid-template-columns: repeat(auto-fill, minmax(min(300px, 100%), 1fr)); gap: 4px 28px; margin: 8px 0 14px; }
dl div { border-bottom: 1px solid var(--line); padding: 4px 0; display: flex; justify-content: space-between; gap: 14px; min-width: 0; }
dt { color: var(--soft); overflow-wrap: anywhere; min-width: 30%; }
dd { margin: 0; font-variant-numeric: tabular-nums; text-align: right; overflow-wrap: anywhere; min-width: 0; }
.callout { border-left: 4px solid var(--purple); padding: 8px 14px; background: var(--wash); border-radius: 0 6px 6px 0; max-width: none; }
.sample { border: 1px solid var(--line); border-radius: 6px; padding: 12px 16px; white-space: pre-wrap; margin: 8px 0 14px; line-height: 1.8;
color: var(--soft); }
mark { background: var(--blue-wash); color: inherit; border-bottom: 2px solid var(--blue); padding: 1px 0; } .sample mark { color: var(--ink); }
.prompt { border-bottom: 1px dotted var(--soft); } .template { color: var(--purple); font-weight: 600; }
mark.differs { background: var(--red-wash); border-bottom-color: var(--red); }
.aligned { border: 1px solid var(--line); border-radius: 6px; padding: 10px 14px; margin: 6px 0 8px; line-height: 1.45; overflow-wrap: anywhere; }
.aligned .lead { color: var(--soft); white-space: pre-wrap; margin-right: 8px; }
.pair { display: inline-grid; white-space: pre; vertical-align: top; margin: 2px 0; } .apart { margin-right: 3px; }
.key { color: var(--soft); font-size: .84rem; margin-right: 10px; }
.pair mark { text-align: center; padding: 0 2px; }
.token { background: var(--wash); border: 1px solid var(--line); border-radius: 4px; padding: 0 5px; white-space: pre-wrap; }
.tokens { display: flex; flex-wrap: wrap; gap: 6px 10px; padding: 0; margin: 8px 0 14px; list-style: none; font-size: .92rem; }
.chain { list-style: none; margin: 8px 0; padding: 0; }
.chain li { border-left: 3px solid var(--blue); padding: 3px 0 12px 16px; overflow-wrap: anywhere; } .chain li.fail { border-color: var(--red); }
details { margin: 6px 0 12px; } summary { cursor: pointer; font-weight: 600; padding: 4px 0; }
:focus-visible { outline: 2px solid var(--blue); outline-offset: 2px; }
@media (max-width: 860px) { .tiles { grid-template-columns: repeat(6, minmax(0, 1fr)); } .tiles li { grid-column: span 2; }
.tiles li:nth-child(n+4) { grid-column: span 3; border-top: 1px solid var(--line); }
  .tiles li:nth-child(4) { border-left: 0; } }
@media (max-width: 620px) {
  main, header { padding-left: 16px; padding-right: 16px; } header { padding-top: 22px; } h1 { font-size: 1.4rem; }
  .verdict { font-size: 1.1rem; padding: 12px 14px; } section { padding: 20px 0 12px; }
  .tiles { grid-template-columns: 1fr 1fr; }
  .tiles li, .tiles li:nth-child(n+4) { grid-column: auto; border: 0; border-bottom: 1px solid var(--line); padding: 10px 12px; }
  .tiles li:first-child { grid-column: 1 / -1; } .tiles li:nth-child(n+4) { border-bottom: 0; } .tiles strong { font-size: 1.5rem; }
  .stack, .stack tbody, .stack tr, .stack th, .stack td, .stack caption { display: block; }
  .stack thead { position: absolute; width: 1px; height: 1px; overflow: hidden; clip-path: inset(50%); }
  .stack tbody tr { border-bottom: 1px solid var(--line); padding: 6px 0; } .stack th, .stack td { border: 0; padding: 1px 0; }
  .stack td { display: flex; justify-content: space-between; gap: 14px; text-align: right; }
  .stack td::before { content: attr(data-label); color: var(--soft); text-align: left; flex: none; max-width: 45%; }
  .stack.texts td, .stack.gate td { display: block; text-align: left; } .stack.texts td::before { content: none; }
  .gate th, .gate tr > :nth-child(2) { width: auto; }
  .stack.gate td::before { content: attr(data-label) " "; }
  .stack.pairs tbody tr { display: grid; grid-template-columns: 1fr 1fr; column-gap: 22px; } .stack.pairs th { grid-column: 1 / -1; }
  .stack.pairs td { gap: 6px; font-size: .84rem; } .stack.numbers td { white-space: normal; } .stack.numbers td:nth-child(n+5) { grid-column: 1 / -1; }
  .figures-right.stack td { text-align: right; } .figures-right { font-size: .84rem; width: 100%; min-width: 0; }
  .figures-right th, .figures-right td { padding-right: 7px; }
}
@media print {
  @page { margin: 14mm; } html { font-size: 11px; } .split { grid-template-columns: 1fr 1fr; } .proofs { grid-template-columns: repeat(3, 1fr); }
  main, header { max-width: none; padding: 0; } nav { display: none; }
  h2, h3, caption { break-after: avoid; }
  section { padding: 14px 0 8px; } section, .proof, tr, figure, .callout, .tiles, .verdict, .chain li { break-inside: avoid; }
  section.long { break-inside: auto; }
  .figures { grid-template-columns: repeat(3, 1fr); } .tiles { grid-template-columns: repeat(5, 1fr); }
  .tiles li.tile { grid-column: auto; border-top: 0; border-left: 1px solid var(--line); }
  .panels { grid-template-columns: repeat(4, 1fr); gap: 10px 14px; } tbody tr:hover { background: none; }
  details:not(.bulk)::details-content { content-visibility: visible; block-size: auto; height: auto; }
  * { -webkit-print-color-adjust: exact; print-color-adjust: exact; }
}
"""
