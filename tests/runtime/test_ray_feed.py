"""From where a feed continues in another worker of ``watch --engine ray``."""

from __future__ import annotations

import pytest
import torch

from costream.core.records import Summary
from costream.core.status import FeedStatus
from costream.runtime.alerts.alerts import AlertOptions
from costream.runtime.watch.feed_list import FeedSpec
from costream.runtime.watch.outbox import SentPosition, SentState
from costream.runtime.watch.ray_watch import RayFeed
from costream.runtime.watch.state_dir import SavedState, Snapshot

BEGAN_S = 1000.0  # time.time()
SUMMARY = Summary(15, 0, 0, 0, 15.0, None, None, 0, 0, False, 0)
OLD, NEW = {"window": torch.zeros(2)}, {"window": torch.ones(2)}


def at(now_s: float, *smoothed: float) -> Snapshot:
    """Return a position with a step just now."""
    return Snapshot(int(now_s), BEGAN_S, now_s, now_s, smoothed, 0)


def test_a_feed_lost_before_its_first_state_continues_with_the_earlier_one():
    feed = RayFeed(FeedSpec("door", "x", "x", AlertOptions()), FeedStatus("door", "x", "live"))
    assert feed.saved() is None
    feed.earlier = earlier = SavedState(**vars(at(10.0, 0.25)), saved_s=BEGAN_S + 10, state=OLD)
    assert feed.saved() is earlier
    feed.at = SentPosition("door", at(15.0), BEGAN_S + 15, SUMMARY)
    found = feed.saved()
    assert found is not None
    assert (found.next_step, found.smoothed, found.saved_s) == (15, (0.25,), BEGAN_S + 15)
    assert found.state is OLD
    feed.state = SentState("door", at(14.0, 0.5), NEW, durable=False)
    found = feed.saved()
    assert found is not None
    assert (found.next_step, found.smoothed) == (15, (0.5,))
    assert found.state is NEW


@pytest.mark.parametrize(("after_s", "used"), [(60, True), (61, False)])
def test_a_state_that_the_worker_found_too_old_is_not_used_after_it(after_s, used):
    feed = RayFeed(FeedSpec("door", "x", "x", AlertOptions()), FeedStatus("door", "x", "live"))
    feed.earlier = SavedState(**vars(at(10.0, 0.25)), saved_s=BEGAN_S + 10, state=OLD)
    feed.at = SentPosition("door", at(10.0 + after_s), BEGAN_S + 10 + after_s, SUMMARY)
    found = feed.saved()
    assert found is not None
    assert found.state is (OLD if used else None)
    assert found.smoothed == ((0.25,) if used else ())


def test_a_state_from_before_a_long_pause_is_not_used_for_what_came_after_it():
    feed = RayFeed(FeedSpec("door", "x", "x", AlertOptions()), FeedStatus("door", "x", "live"))
    feed.at = SentPosition("door", at(15.0), BEGAN_S + 15, SUMMARY)
    feed.state = SentState("door", at(15.0, 0.5), OLD, durable=False)
    feed.continues()
    second = feed.saved()
    assert second is not None
    assert (second.next_step, second.state) == (15, OLD)
    feed.at = SentPosition("door", at(100.0), BEGAN_S + 100, SUMMARY)  # after 85 s
    feed.continues()
    third = feed.saved()
    assert third is not None
    assert (third.next_step, third.state, third.smoothed) == (100, None, ())
