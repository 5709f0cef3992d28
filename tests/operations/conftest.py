"""The training service in Google's place, and a session with it."""

from tests.support.held_session import service, session

__all__ = ["service", "session"]
