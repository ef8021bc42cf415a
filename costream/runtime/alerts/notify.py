"""``--notify``: alerts to services for messages, through Apprise, and to Frigate as events."""

from __future__ import annotations

import json
import logging
import threading
from typing import Any
from urllib.parse import quote, urlsplit, urlunsplit

from costream.core.errors import OutputError, UsageError
from costream.runtime.alerts.actions import AlertEvent, PostJson
from costream.runtime.alerts.worker import Action

FRIGATE = {"frigate": "http", "frigates": "https"}
FRIGATE_S = 30  # length of an event in Frigate


class Notify:
    """Sends each alert, with its picture, to a service by its Apprise URL: ``ntfy://TOPIC``.

    Messages name only the kind of the service, as such a URL is often a secret.
    """

    wants_clip = False

    def __init__(self, url: str) -> None:
        """Raise UsageError if Apprise is not installed, or does not know the service."""
        try:
            import apprise
            from apprise.attachment.memory import AttachMemory
        except ImportError as error:
            hint = "pip install 'costream[notify]'"
            raise UsageError("needs the extra notify", hint=hint) from error
        logging.getLogger("apprise").setLevel(logging.CRITICAL)  # its messages contain URLs
        scheme = url.partition(":")[0]
        self.name = f"notify {scheme}" if scheme.isalnum() else "notify"
        self._service = apprise.Apprise()
        if "://" not in url or not self._service.add(url):
            hint = "as in ntfy://TOPIC; see github.com/caronc/apprise for the services"
            raise UsageError("not the URL of a service that Apprise knows", hint=hint)
        self._attachments, self._attached = apprise.AppriseAttachment, AttachMemory
        self._cancelled = threading.Event()

    def do(self, event: AlertEvent) -> None:
        """Send the alert. OutputError when it was not accepted."""
        if self._cancelled.is_set():
            return
        alert, attach = event.alert, None
        if event.snapshot is not None:
            picture = self._attached(event.snapshot.jpeg(), "alert.jpg", "image/jpeg")
            attach = self._attachments(picture)
        title = f"{event.feed}: {alert.label} {alert.score:.2f}"
        if not self._service.notify(f"{event.at}\n{alert.rule}", title=title, attach=attach):
            raise OutputError("not delivered", where=self.name)

    def cancel(self) -> None:
        """Send no more."""
        self._cancelled.set()


class FrigateEvent(PostJson):
    """Creates an event in Frigate for each alert: ``frigate://HOST:5000``, or frigates:// for TLS.

    The camera there has the name of the feed. Source: Frigate's HTTP API, POST
    /api/events/CAMERA/LABEL/create.
    """

    def __init__(self, url: str) -> None:
        """Raise UsageError if it is not an address."""
        parts = urlsplit(url)
        super().__init__(urlunsplit(parts._replace(scheme=FRIGATE[parts.scheme])))
        self.name = self.name.replace("POST to", "Frigate at", 1)

    def do(self, event: AlertEvent) -> None:
        """Create the event. OutputError when it was not accepted."""
        alert = event.alert
        values: dict[str, Any] = {
            "source_type": "costream",
            "sub_label": alert.rule[:100],
            "score": round(alert.score, 3),
            "duration": FRIGATE_S,
            "include_recording": True,
        }
        where = f"/api/events/{quote(event.feed, safe='')}/{quote(alert.label, safe='')}/create"
        self.send(json.dumps(values).encode(), where)


def notifier(url: str) -> Action:
    """Return the action for the URL of a service. Raises UsageError if it is none."""
    return FrigateEvent(url) if url.partition("://")[0] in FRIGATE else Notify(url)
