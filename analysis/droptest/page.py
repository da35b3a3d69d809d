# SPDX-License-Identifier: Apache-2.0
"""Pieces of a self-contained HTML page. Text is escaped here and nowhere else; nothing is fetched from a network."""

from __future__ import annotations

import base64
import html
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

STYLE = """
:root { color-scheme: light dark; --ink: #1c2024; --soft: #5b6470; --page: #ffffff; --card: #f5f6f8; --line: #d9dde2;
  --link: #1a5fb4; --warn: #8a5a00; --warnback: #fff6e0; }
@media (prefers-color-scheme: dark) { :root { --ink: #e4e7ea; --soft: #9aa4af; --page: #15181b; --card: #1e2226;
  --line: #343a40; --link: #7db3f0; --warn: #f0c060; --warnback: #2c2517; } }
* { box-sizing: border-box; }
body { margin: 0 auto; max-width: 76rem; padding: 1.5rem 1.25rem 4rem; background: var(--page); color: var(--ink);
  font: 15px/1.5 system-ui, "DejaVu Sans", sans-serif; }
h1 { font-size: 1.7rem; margin: .5rem 0 .25rem; } h2 { font-size: 1.2rem; margin: 2.2rem 0 .6rem; }
h1, h2 { line-height: 1.25; overflow-wrap: anywhere; } a { color: var(--link); }
p { margin: .4rem 0; max-width: 60rem; }
.soft, figcaption { color: var(--soft); font-size: .9rem; }
.warnings { background: var(--warnback); color: var(--warn); border-left: 4px solid var(--warn); padding: .5rem 1rem;
  overflow-wrap: anywhere; }
.warnings ul { margin: .2rem 0; padding-left: 1.2rem; }
.scroll { overflow: auto; max-height: 80vh; border: 1px solid var(--line); border-radius: 6px; }
table { border-collapse: collapse; width: 100%; font-size: .88rem; font-variant-numeric: tabular-nums; }
th { position: sticky; top: 0; background: var(--card); text-align: left; font-weight: 600; z-index: 1;
  box-shadow: inset 0 -1px var(--line); vertical-align: bottom; }
th, td { padding: .35rem .7rem; white-space: nowrap; } td { border-top: 1px solid var(--line); vertical-align: top; }
td.wrap { white-space: normal; overflow-wrap: anywhere; min-width: 16rem; } .number { text-align: right; }
tbody tr:nth-child(even) { background: var(--card); }
figure { margin: 1rem 0 2rem; } figure img { width: 100%; max-width: 60rem; height: auto; background: #fff;
  border: 1px solid var(--line); border-radius: 6px; padding: .5rem; display: block; }
figcaption { max-width: 60rem; margin-top: .4rem; }
pre { background: var(--card); border: 1px solid var(--line); border-radius: 6px; padding: .8rem; overflow: auto;
  max-height: 40rem; font-size: .85rem; } summary { cursor: pointer; margin: .4rem 0; }
dl { display: grid; grid-template-columns: max-content 1fr; gap: .15rem 1rem; margin: .6rem 0; }
dt { color: var(--soft); }
dd { margin: 0; overflow-wrap: anywhere; }
@media print { .scroll { max-height: none; } body { max-width: none; } }
"""


@dataclass(frozen=True)
class Markup:
    """HTML that is already escaped; everything else that goes into a page is text."""

    html: str


Content = str | Markup


def escaped(content: object) -> str:
    """`content` as HTML: markup as it is, everything else escaped."""
    if isinstance(content, Markup):
        return content.html
    # JSON can hold lone surrogates, which no file can, and control characters, which no page may.
    text = str(content).encode("utf-8", "replace").decode("utf-8")
    text = "".join(c if c.isprintable() or c in "\n\t" else "\N{REPLACEMENT CHARACTER}" for c in text)
    return html.escape(text, quote=True)


def element(tag: str, *content: object, **attributes: object) -> Markup:
    """An element; `class_` is the attribute class."""
    text = "".join(f' {key.rstrip("_")}="{escaped(value)}"' for key, value in attributes.items())
    return Markup(f"<{tag}{text}>{''.join(map(escaped, content))}</{tag}>")


def joined(parts: Iterable[object], separator: str = "") -> Markup:
    return Markup(escaped(separator).join(escaped(part) for part in parts))


def link(target: str, text: str) -> Markup:
    """A link to a relative path; `target` is quoted already."""
    return element("a", text, href=target)


def table(header: Sequence[str], rows: Iterable[Sequence[object]], numbers: Sequence[int] = (),
          wraps: Sequence[int] = ()) -> Markup:  # fmt: skip
    """A table with a header that stays in view. numbers: columns set flush right; wraps: columns of long text."""
    kinds = {**{i: "number" for i in numbers}, **{i: "wrap" for i in wraps}}

    def cell(tag: str, index: int, content: object) -> Markup:
        return element(tag, content, class_=kinds[index]) if index in kinds else element(tag, content)

    head = element("tr", *(cell("th", i, text) for i, text in enumerate(header)))
    body = [element("tr", *(cell("td", i, content) for i, content in enumerate(row))) for row in rows]
    return element("div", element("table", element("thead", head), element("tbody", *body)), class_="scroll")


def definitions(pairs: Iterable[tuple[object, object]]) -> Markup:
    return element("dl", *(joined([element("dt", term), element("dd", text)]) for term, text in pairs))


def bullets(items: Iterable[object]) -> Markup:
    return element("ul", *(element("li", item) for item in items))


def image(svg: Path, alternative: str, caption: Content) -> Markup:
    """A figure with the picture inside the page, so that it is complete in itself."""
    data = base64.b64encode(svg.read_bytes()).decode("ascii")
    picture = Markup(f'<img alt="{escaped(alternative)}" src="data:image/svg+xml;base64,{data}">')
    return element("figure", picture, element("figcaption", caption))


def page(title: str, *content: object) -> str:
    """A whole document."""
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        '<meta http-equiv="Content-Security-Policy" content="default-src \'none\'; img-src data:; '
        "style-src 'unsafe-inline'\">\n"
        f"<title>{escaped(title)}</title>\n<style>{STYLE}</style>\n</head>\n<body>\n"
        + "\n".join(map(escaped, content))
        + "\n</body>\n</html>\n"
    )
