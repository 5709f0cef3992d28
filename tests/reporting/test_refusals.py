"""When a refused request may be sent again, where the service doesn't say."""

from __future__ import annotations

from reconciler.model.ports import Refused, refusal


def test_a_refusal_that_says_nothing_of_time_may_be_sent_again_at_once() -> None:
    refused = refusal(403, "PERMISSION_DENIED", "no")
    assert isinstance(refused, Refused)
    assert refused.retry_after is None
    assert Refused(403, "PERMISSION_DENIED", "no").retry_after is None
