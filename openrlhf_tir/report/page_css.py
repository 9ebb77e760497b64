"""The style sheet of report.html."""

CSS = """
:root { --page: #f5f6f8; --card: #ffffff; --ink: #14171c; --muted: #5b6270; --line: #e4e7ec; --accent: #2a6fdb; }
@media (prefers-color-scheme: dark) {
  :root { --page: #0f1115; --card: #171a20; --ink: #eef0f4; --muted: #a3abb8; --line: #2c313a; --accent: #6ea4ff; }
}
* { box-sizing: border-box; }
body { margin: 0; background: var(--page); color: var(--ink); font: 15px/1.55 system-ui, -apple-system, "Segoe UI", Roboto, "Noto Sans", sans-serif; }
main { max-width: 980px; margin: 0 auto; padding: 48px 20px 80px; }
h1 { margin: 0; font-size: 34px; line-height: 1.15; letter-spacing: -.02em; overflow-wrap: anywhere; }
h2 { margin: 48px 0 14px; font-size: 20px; letter-spacing: -.01em; }
.eyebrow { margin: 0 0 6px; color: var(--accent); font-weight: 600; font-size: 13px; }
.sub, .note { color: var(--muted); }
.sub { margin: 10px 0 0; overflow-wrap: anywhere; }
code { font: .88em ui-monospace, SFMono-Regular, Menlo, "DejaVu Sans Mono", monospace; }
.tiles { display: grid; grid-template-columns: repeat(auto-fit, minmax(260px, 1fr)); gap: 12px; margin-top: 28px; }
.tile, figure, .scroll, details { background: var(--card); border: 1px solid var(--line); border-radius: 12px; }
.tile { padding: 16px 18px; }
.tile p { margin: 0; color: var(--muted); font-size: 13px; }
.tile strong { display: block; margin: 2px 0; font-size: 28px; font-weight: 650; letter-spacing: -.02em; font-variant-numeric: tabular-nums; }
.tile small { color: var(--muted); font-size: 13px; }
figure { margin: 0 0 16px; padding: 14px 14px 16px; }
figcaption { margin: 8px 8px 0; color: var(--muted); font-size: 14px; }
figure img { display: block; width: 100%; height: auto; }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; width: 100%; font-size: 14px; }
th, td { padding: 9px 18px; text-align: left; border-bottom: 1px solid var(--line); }
tbody tr:last-child td { border-bottom: 0; }
th { color: var(--muted); font-weight: 500; font-size: 13px; }
.numbers th:not(:first-child), .numbers td:not(:first-child) { text-align: right; font-variant-numeric: tabular-nums; }
.words td { overflow-wrap: anywhere; }
details { margin-top: 12px; }
details summary { padding: 12px 18px; cursor: pointer; color: var(--muted); }
details .scroll { border: 0; border-top: 1px solid var(--line); border-radius: 0 0 12px 12px; }
.remarks { margin: 0; padding-left: 20px; color: var(--muted); }
"""
