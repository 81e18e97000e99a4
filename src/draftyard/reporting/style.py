"""The report's style sheet. Colours are Okabe and Ito's, told apart by colour-blind readers; nothing rests on colour alone."""

from __future__ import annotations

CSS = """
:root { --ink: #1b1f24; --soft: #57606a; --line: #d5dae0; --paper: #fff; --wash: #f5f7f9;
  --blue: #0072b2; --orange: #c77700; --green: #00734f; --red: #b3431a; --purple: #8f4f7d; }
* { box-sizing: border-box; }
html { -webkit-text-size-adjust: 100%; }
body { margin: 0; color: var(--ink); background: var(--paper); font: 16px/1.5 system-ui, -apple-system, "Segoe UI", Roboto, "DejaVu Sans", sans-serif; }
main, header { max-width: 1120px; margin: 0 auto; padding: 0 20px; }
header { padding-top: 28px; }
h1 { font-size: 1.15rem; font-weight: 600; margin: 0; }
.subject { color: var(--soft); margin: 2px 0 18px; }
h2 { font-size: 1.3rem; margin: 0 0 6px; }
h3 { font-size: 1rem; margin: 18px 0 4px; }
p { margin: 6px 0 12px; max-width: 76ch; }
section { border-top: 1px solid var(--line); padding: 22px 0 14px; }
.soft { color: var(--soft); }
code, .token, pre { font-family: ui-monospace, "SF Mono", Menlo, Consolas, "DejaVu Sans Mono", monospace; font-size: .86em; overflow-wrap: anywhere; }
.verdict { border-left: 8px solid; padding: 14px 18px; margin: 0 0 18px; background: var(--wash);
  font-size: 1.3rem; line-height: 1.38; font-weight: 600; max-width: none; }
.verdict b { display: block; font-size: .82rem; letter-spacing: .06em; text-transform: uppercase; margin-bottom: 2px; }
.pass { --tone: var(--green); } .fail { --tone: var(--red); } .warn { --tone: var(--orange); } .skipped, .info { --tone: var(--soft); }
.verdict { border-color: var(--tone); } .verdict b { color: var(--tone); }
.badge { color: var(--tone); font-weight: 700; white-space: nowrap; }
.tiles { display: grid; grid-template-columns: repeat(auto-fit, minmax(150px, 1fr)); gap: 12px; margin: 0 0 22px; padding: 0; list-style: none; }
.tiles li { border: 1px solid var(--line); border-radius: 6px; padding: 10px 12px; }
.tiles strong { display: block; font-size: 1.55rem; line-height: 1.2; font-variant-numeric: tabular-nums; }
.tiles span { font-size: .84rem; color: var(--soft); display: block; }
.proofs { display: grid; grid-template-columns: repeat(auto-fit, minmax(290px, 1fr)); gap: 14px; }
.proof { border: 1px solid var(--line); border-top: 5px solid var(--tone); border-radius: 6px; padding: 12px 14px; min-width: 0; }
.proof h3 { margin: 0 0 8px; font-size: 1.08rem; display: flex; justify-content: space-between; gap: 10px; }
.proof ul { list-style: none; margin: 0; padding: 0; font-size: .92rem; }
.proof li { padding: 5px 0 5px 24px; position: relative; border-top: 1px solid var(--line); overflow-wrap: anywhere; }
.proof li .badge { position: absolute; left: 2px; }
.proof li.info { color: var(--soft); }
.figures { display: grid; grid-template-columns: repeat(auto-fill, minmax(min(320px, 100%), 1fr)); gap: 14px 20px; margin: 8px 0 14px; }
figure { margin: 0; min-width: 0; break-inside: avoid; }
figcaption { font-size: .92rem; font-weight: 600; overflow-wrap: anywhere; }
figcaption small { font-weight: 400; color: var(--soft); }
svg { display: block; width: 100%; max-width: 430px; height: auto; }
svg text { font: 10.5px system-ui, "DejaVu Sans", sans-serif; fill: var(--soft); }
svg text.value { fill: var(--ink); font-size: 10px; } svg text.label { font-size: 10.5px; }
svg .grid { stroke: var(--line); stroke-width: 1; } svg .mark { stroke: var(--soft); stroke-dasharray: 2 3; }
svg.key { display: inline-block; width: 26px; height: 10px; vertical-align: 1px; }
svg.meter { height: 14px; max-width: 340px; border-radius: 3px; } .track { fill: var(--line); }
.s1 { --series: var(--blue); } .s2 { --series: var(--orange); } .s3 { --series: var(--green); } .s4 { --series: var(--purple); }
.bar { fill: var(--series); stroke: var(--series); stroke-width: 1.6; } .bar.s2 { fill: var(--paper); } .bar.s3 { fill-opacity: .35; }
.line { fill: none; stroke: var(--series); stroke-width: 1.9; stroke-linejoin: round; }
.line.s2 { stroke-dasharray: 6 3; } .line.s3 { stroke-dasharray: 2 2.5; } .line.s4 { stroke-dasharray: 9 3 2 3; }
.dot { fill: var(--series); stroke: var(--paper); stroke-width: 1; } .dot.s2 { fill: var(--paper); stroke: var(--series); stroke-width: 2; }
.span { stroke: var(--series); stroke-width: 6; stroke-opacity: .28; stroke-linecap: round; }
figure .legend { font-size: .84rem; gap: 2px 14px; } .legend { display: flex; flex-wrap: wrap; gap: 4px 18px; font-size: .9rem; margin: 4px 0; }
.swatch { display: inline-block; width: 14px; height: 12px; border: 2px solid var(--series); background: var(--series); vertical-align: -1px; }
.swatch.s2 { background: var(--paper); } .swatch.s3 { background: color-mix(in srgb, var(--series) 35%, var(--paper)); }
table { border-collapse: collapse; width: 100%; font-size: .92rem; margin: 8px 0 16px; font-variant-numeric: tabular-nums; }
caption { text-align: left; color: var(--soft); padding-bottom: 4px; }
th, td { text-align: left; vertical-align: top; padding: 5px 14px 5px 0; border-bottom: 1px solid var(--line); overflow-wrap: anywhere; }
thead th { font-size: .82rem; color: var(--soft); font-weight: 600; border-bottom: 2px solid var(--line); }
tbody th { font-weight: 500; }
table.figures-right { width: auto; min-width: min(640px, 100%); }
.figures-right thead th { overflow-wrap: break-word; }
table.figures-right td { text-align: right; } table.figures-right thead th:not(:first-child) { text-align: right; }
tr.bad th, tr.bad td { background: #fbeee9; }
dl { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(250px, 100%), 1fr)); gap: 0 28px; margin: 8px 0 14px; font-size: .92rem; }
dl div { display: flex; justify-content: space-between; gap: 14px; border-bottom: 1px solid var(--line); padding: 4px 0; min-width: 0; }
dt { color: var(--soft); overflow-wrap: anywhere; min-width: 0; }
dd { margin: 0; text-align: right; font-variant-numeric: tabular-nums; overflow-wrap: anywhere; min-width: 0; }
.callout { border: 2px solid var(--purple); border-radius: 6px; padding: 10px 14px; margin: 8px 0 14px; max-width: none; }
.callout strong { color: var(--purple); }
.sample { border: 1px solid var(--line); border-radius: 6px; padding: 12px 14px; white-space: pre-wrap;
  margin: 8px 0 14px; font-size: .86rem; line-height: 1.75; color: var(--soft); }
mark { background: #d6eaf8; color: #00375a; border-bottom: 2px solid var(--blue); padding: 1px 0; }
mark.differs { background: #fbe3d9; color: #6d240a; border-bottom-color: var(--red); }
.token { background: var(--wash); border: 1px solid var(--line); border-radius: 4px; padding: 0 5px; white-space: pre-wrap; }
.tokens { display: flex; flex-wrap: wrap; gap: 6px 8px; padding: 0; margin: 8px 0 14px; list-style: none; font-size: .92rem; }
.chain { list-style: none; margin: 8px 0; padding: 0; }
.chain li { border-left: 4px solid var(--blue); padding: 4px 0 10px 14px; overflow-wrap: anywhere; }
.chain li.fail { border-color: var(--red); }
details { margin: 6px 0 12px; } summary { cursor: pointer; font-weight: 600; padding: 4px 0; }
nav { font-size: .88rem; margin: 0 0 14px; } nav a { margin-right: 14px; white-space: nowrap; display: inline-block; padding: 3px 0; } a { color: var(--blue); }
@media (max-width: 620px) {
  main, header { padding-left: 16px; padding-right: 16px; } .verdict { font-size: 1.12rem; padding: 12px 14px; }
  .tiles { grid-template-columns: 1fr 1fr; }
  .stack, .stack tbody, .stack tr, .stack th, .stack td, .stack caption { display: block; }
  .stack thead { position: absolute; width: 1px; height: 1px; overflow: hidden; clip-path: inset(50%); }
  .stack tbody tr { border-bottom: 1px solid var(--line); padding: 6px 0; } .stack th, .stack td { border: 0; padding: 1px 0; }
  .stack td { display: flex; justify-content: space-between; gap: 14px; text-align: right; }
  .stack td::before { content: attr(data-label); color: var(--soft); text-align: left; flex: none; max-width: 45%; }
  .stack.texts td { display: block; text-align: left; } .stack.texts td::before { content: none; }
  .stack.pairs tbody tr { display: grid; grid-template-columns: 1fr 1fr; column-gap: 22px; } .stack.pairs th { grid-column: 1 / -1; }
  .stack.pairs td { gap: 6px; font-size: .84rem; }
  .figures-right { font-size: .86rem; } .figures-right th, .figures-right td { padding-right: 8px; } .figures-right tr > :last-child { padding-right: 0; }
}
@media print {
  body { font-size: 10.5pt; } nav { display: none; } h2, h3, caption { break-after: avoid; }
  section, .proof, tr, figure { break-inside: avoid; } section.long { break-inside: auto; }
  details::details-content { content-visibility: visible; block-size: auto; height: auto; } * { -webkit-print-color-adjust: exact; print-color-adjust: exact; }
}
"""
