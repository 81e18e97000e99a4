"""Two texts side by side, word by word."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from draftyard.reporting.aligned import MAX_WORDS, WORD, align, aligned


def test_what_both_say_stands_in_one_column() -> None:
    assert align("the red old house", "the blue house.") == [
        ("the ", "the "), ("red ", "blue "), ("old ", ""), ("house", "house"), ("", "."),
    ]  # fmt: skip


@settings(deadline=None)
@given(st.text(), st.text())
def test_no_character_is_lost(left: str, right: str) -> None:
    pairs = align(left, right)
    assert "".join(above for above, _ in pairs) == "".join(WORD.findall(left)[:MAX_WORDS])
    assert "".join(below for _, below in pairs) == "".join(WORD.findall(right)[:MAX_WORDS])


def test_a_shared_start_is_the_lead_and_never_ends_inside_a_word() -> None:
    text = aligned("He said ", "there was", "therefore not")
    assert '<span class="lead">He said </span>' in text
    assert '<mark class="differs">there </mark><mark class="differs">therefore </mark>' in text


def test_an_end_is_shown_as_an_end() -> None:
    text = aligned("", "", "more")
    assert '<mark class="differs">∅</mark><mark class="differs">more</mark>' in text
    assert "(ends here)" in text
