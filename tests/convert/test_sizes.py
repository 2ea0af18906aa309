"""Sizes that several tensors share: who is named when they disagree."""

import pytest

from positionwise.convert.sizes import Claim, agree
from positionwise.errors import ConvertError


def test_what_all_say_is_the_size():
    assert agree([Claim("d", "a", 4), Claim("f", "a", 8), Claim("d", "b", 4), Claim("kind", "a", "x")]) == {
        "d": 4, "f": 8, "kind": "x"
    }  # fmt: skip
    assert agree([]) == {}


def test_one_against_most_is_named():
    claims = [Claim("d", name, 5 if name == "c" else 4) for name in "abcd"]
    with pytest.raises(ConvertError, match=r"^expected d of 4, as in 'a'; got 5 in 'c'$"):
        agree(claims)


def test_both_sides_are_named_where_neither_has_more():
    with pytest.raises(ConvertError, match=r"^expected one d; got 4 in 'a' and 5 in 'b'$"):
        agree([Claim("d", "a", 4), Claim("d", "b", 5)])


def test_a_size_with_a_clear_fault_is_told_before_one_without():
    claims = [Claim("e", "a", 1), Claim("e", "b", 2), *(Claim("d", name, 5 if name == "b" else 4) for name in "abc")]
    with pytest.raises(ConvertError, match="expected d of 4.*got 5 in 'b'"):
        agree(claims)


def test_many_names_stay_short():
    with pytest.raises(ConvertError, match=r"got 5 in 'c1' and 'c2' and 7 more$"):
        agree([Claim("d", f"a{i}", 4) for i in range(10)] + [Claim("d", f"c{i}", 5) for i in range(1, 10)])
