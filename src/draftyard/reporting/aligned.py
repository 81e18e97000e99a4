"""Two texts that part ways, aligned word by word: each column holds what one says above what the other says."""

from __future__ import annotations

import re
from difflib import SequenceMatcher
from itertools import zip_longest

from draftyard.reporting.markup import Markup, join, tag
from draftyard.reporting.text import clean, common_prefix

WORD = re.compile(r"\s{1,24}|(?:[^\W_]{1,24}|[\W_])[^\S\n]{0,24}")
"""A word or one other character with the white space after it; a longer run is cut, so that no column is wider than a phone."""
LEAD_CHARACTERS = 160
MAX_WORDS = 160
"""Words of each text that are aligned; both texts in full stand below."""


def align(left: str, right: str) -> list[tuple[str, str]]:
    """Words of both texts side by side; an empty text where the other has a word of its own."""
    a, b = (WORD.findall(text)[:MAX_WORDS] for text in (left, right))
    pairs: list[tuple[str, str]] = []
    for operation, a0, a1, b0, b1 in SequenceMatcher(None, a, b, autojunk=False).get_opcodes():
        if operation == "equal":
            pairs += list(zip(a[a0:a1], b[b0:b1], strict=True))
        else:
            pairs += list(zip_longest(a[a0:a1], b[b0:b1], fillvalue=""))
    return pairs


def aligned(shared: str, plain: str, draft: str) -> Markup:
    """The end of the text that both share, then both continuations, differing words marked."""
    shared, plain, draft = clean(shared), clean(plain), clean(draft)
    ends = [{match.end() for match in WORD.finditer(text)} for text in (plain, draft)]
    common = max((end for end in ends[0] & ends[1] if end <= common_prefix(plain, draft)), default=0)  # never inside a word
    lead = shared + plain[:common]
    start = max(0, len(lead) - LEAD_CHARACTERS)
    columns = [_column(above, below) for above, below in align(plain[common:], draft[common:])]
    key = tag("span", tag("span", "plain"), tag("span", "draft"), class_="pair key")
    said = "Both texts from before the difference, aligned: plain decoding above, with the draft below."
    figure = tag("div", tag("span", ("…" if start else "") + lead[start:], class_="lead"), key, columns, class_="aligned", role="img", aria_label=said)
    full = [tag("p", tag("b", f"{name}: "), text or "(ends here)") for name, text in (("plain", plain), ("with the draft", draft))]
    return join(figure, tag("details", tag("summary", "Both texts from the first differing token on"), full))


def _column(above: str, below: str) -> Markup:
    same = above == below
    shown = [tag("span", text) if same else tag("mark", text or "∅", class_="differs") for text in (above.replace("\n", "⏎"), below.replace("\n", "⏎"))]
    return tag("span", shown, class_="pair" if same else "pair apart")
