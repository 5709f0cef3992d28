"""The terminal's times, widths and colours."""

from __future__ import annotations

from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reconciler.model.job import State
from reconciler.output.terminal import GAP, SIGNS, age, column_widths, duration, fitted, painter, width_of

TEXTS = st.text(st.sampled_from("ab-é漢…🙂e\u0301"), max_size=30)


@pytest.mark.parametrize(
    ("seconds", "long", "short"),
    [
        (-5, "0s", "0s"),
        (59.9, "59s", "59s"),
        (60, "1m00s", "1m"),
        (3 * 3600 + 5 * 60 + 7, "3h05m", "3h"),
        (86400 * 12 + 3600, "12d01h", "12d"),
        (86400 * 800, "800d00h", "2y"),
    ],
)
def test_durations_have_two_units_and_ages_one(seconds: float, long: str, short: str) -> None:
    time = timedelta(seconds=seconds)
    assert (duration(time), age(time)) == (long, short)


@given(text=TEXTS, width=st.integers(1, 40))
def test_fitted_text_takes_exactly_the_width_and_is_cut_visibly(text: str, width: int) -> None:
    shown = fitted(text, width)
    assert width_of(shown) == width
    if width_of(text) > width:
        assert "…" in shown
    else:
        assert shown.rstrip() == text.rstrip()


@given(data=st.data(), width=st.integers(1, 200))
def test_columns_fit_the_width(data: st.DataObject, width: int) -> None:
    pairs = data.draw(st.lists(st.tuples(st.integers(1, 60), st.integers(1, 20)), min_size=1, max_size=8))
    natural, least = zip(*pairs, strict=True)
    widths = column_widths(natural, least, width)
    shown = [own for own in widths if own]
    assert shown
    assert sum(shown) + GAP * (len(shown) - 1) <= width
    assert all(own <= most for own, most in zip(widths, natural, strict=True))
    assert column_widths(natural, least, None) == list(natural)


def test_every_state_has_a_sign_of_its_own_and_a_colour() -> None:
    paint = painter(colour=True)
    assert len(set(SIGNS.values())) == len(State)
    assert all(paint(state, "x") != "x" for state in State)
    assert painter(colour=False)(State.FAILED, "x") == "x"
