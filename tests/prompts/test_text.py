"""When two texts are the same, and what their shingles are."""

from __future__ import annotations

import time

import pytest

from draftyard.prompts.text import content_key, has_combining_run, normalise, rank, shingles, views


@pytest.mark.parametrize(
    ("left", "right"),
    [
        ("Hello  World\n", "hello world"),
        ("ＨＥＬＬＯ", "hello"),  # full width
        ("ﬁne", "fine"),  # ligature
        ("Straße", "STRASSE"),
        ("café", "cafe\u0301"),
        ("zero\u200bwidth\ufeff", "zerowidth"),
        ("a\u00a0b\u3000c\td", "a b c d"),
    ],
)
def test_differences_that_no_reader_sees_are_none(left: str, right: str) -> None:
    assert normalise(left) == normalise(right)


@pytest.mark.parametrize(("left", "right"), [("x + 1", "x - 1"), ("résumé", "resume"), ("Is it?", "Is it"), ("a b", "ab")])
def test_differences_that_mean_something_stay(left: str, right: str) -> None:
    assert normalise(left) != normalise(right)


def test_content_key_tells_system_and_turn_boundaries_apart() -> None:
    keys = {content_key(None, ("a", "b")), content_key(None, ("a b",)), content_key("a", ("b",)), content_key(None, ("b", "a")), content_key(None, ("a\nb",))}
    assert len(keys) == 4  # "a b" and "a\nb" are the same text
    assert content_key("", ("a",)) == content_key(None, ("A ",))


def test_rank_depends_on_seed_and_content_only() -> None:
    assert rank(0, "k") == rank(0, "k")
    assert len({rank(0, "k"), rank(1, "k"), rank(0, "l")}) == 3
    assert rank(0, "k").hex() == "07a98f6b5806c495a1138c64bc1edd89"  # printf '0/k' | sha256sum: splits must never move between versions


def test_shingles_by_hand() -> None:
    assert shingles("One, two: three four FIVE six!") == {"one two three four five", "two three four five six"}
    assert shingles("one two three four five") == {"one two three four five"}


@pytest.mark.parametrize(("text", "expected"), [("Why not?", "why not"), ("why", "why"), ("?!", "?!"), ("🙂 🙂", "🙂 🙂")])
def test_short_texts_are_one_shingle(text: str, expected: str) -> None:
    assert shingles(text) == {expected}


def test_scripts_without_spaces_are_cut_by_character() -> None:
    assert shingles("请把这句话翻译") == {"请 把 这 句 话", "把 这 句 话 翻", "这 句 话 翻 译"}
    assert shingles("GPUを使う方法は") == {"gpu を 使 う 方", "を 使 う 方 法", "使 う 方 法 は"}


def test_the_first_turn_is_a_view_of_its_own_when_it_says_enough() -> None:
    first = "How do I prune an old apple tree?"
    assert views((first,)) == (shingles(first),)
    assert views((first, "Thanks, and a pear tree?"))[1] == shingles(first)
    assert len(views(("Hi there!", "How do I prune an old apple tree?"))) == 1


def test_combining_marks_in_a_row() -> None:
    assert not has_combining_run("Việt Nam, हिन्दी, עִבְרִית, ภาษาไทย")
    assert not has_combining_run("a" + "\u0301" * 64)
    assert has_combining_run("a" + "\u0301" * 65)


def test_the_check_for_combining_marks_is_linear() -> None:
    hostile = "a" + "\u0301\u0316" * 500_000  # normalising this would take an hour
    started = time.monotonic()
    assert has_combining_run(hostile)
    assert time.monotonic() - started < 5
