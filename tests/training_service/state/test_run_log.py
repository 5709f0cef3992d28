"""Lines of a run's log."""

from __future__ import annotations

from reconciler.training_service.state.run_log import LineSplitter


def test_lines_are_cut_alike_however_they_arrive() -> None:
    data = ("x" + "ü" * 70_000 + "\n" + "short\r\n" + "last").encode()
    whole = LineSplitter()
    expected = whole.feed(data) + whole.close()
    assert "".join(expected[:3]) == "x" + "ü" * 70_000
    assert expected[3:] == ["short", "last"]
    for size in (1000, 65_537):
        split = LineSplitter()
        parts = [
            line for start in range(0, len(data), size) for line in split.feed(data[start : start + size])
        ]
        assert [*parts, *split.close()] == expected
