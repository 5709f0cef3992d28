"""Parts that all pages share: choices about their content, addresses, times and the Jinja2 environment.

Text is escaped and visible, and each page forbids all but its style. Everything that others chose passes
`finalize`, which escapes what HTML would hide, and then autoescape. The address of a page is a hash of its
key wherever the key could be more than a plain name.
"""

from __future__ import annotations

import hashlib
import re
from base64 import b64encode
from collections.abc import Mapping
from datetime import UTC, datetime, tzinfo
from functools import cache
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup
from msgspec import Struct

from reconciler.base.sanitize import one_line
from reconciler.manifests.secrets import without_secrets
from reconciler.model.claim import time_of
from reconciler.output.terminal import age

_LEFT_OUT = "(left out)"


class PageContent(Struct, frozen=True):
    """Choices about the content of pages.

    Attributes:
        logs: True for the last lines of each job's log.
        env_values: True for the values of environment variables.
        zone: The time zone of shown times, and its name.
    """

    logs: bool = False
    env_values: bool = False
    zone: tzinfo = UTC
    zone_name: str = "UTC"


def shown_spec(spec: Mapping[str, object], content: PageContent) -> Mapping[str, object]:
    """Return a spec as pages show it: without secrets, and with the values that the content has."""
    shown = without_secrets(spec)
    return shown if content.env_values else _without_values(shown)  # type: ignore[no-any-return]


def _without_values(node: Any, name: str = "") -> Any:
    """Return JSON with the values of variables left out: those of all objects in a list called `env`."""
    if isinstance(node, Mapping):
        return {key: _without_values(part, key) for key, part in node.items()}
    if not isinstance(node, list | tuple):
        return node
    if name != "env":
        return [_without_values(item) for item in node]
    return [
        {key: _LEFT_OUT if key == "value" else part for key, part in item.items()}
        if isinstance(item, Mapping)
        else _LEFT_OUT
        for item in node
    ]


PAGE = 100
"""Rows of a page."""
# Names of jobs as the tool makes them, and hashes of commits. Small letters alone: on some file systems two
# names that differ by case are one.
_PLAIN = re.compile(r"[a-z][a-z0-9_]{0,100}_[0-9a-f]{16}(?:_[0-9]{1,9})?|[0-9a-f]{40}")
_UNSAFE = re.compile("[^a-z0-9_]+")
_SHOWN = 40  # characters of a name in an address that has a hash


def address(folder: str, name: str, key: str = "") -> str:
    """Return the path of a page below the site's root.

    Args:
        folder: The kind of page, a name of ours.
        name: The name of its subject, by anyone.
        key: What tells it from others of this name; "" if the name is enough.
    """
    if _PLAIN.fullmatch(name) and not key:
        return f"{folder}/{name}.html"
    # A plain name has no ".": no hash makes an address that another name has.
    digest = hashlib.sha256(f"{name}\0{key}".encode("utf-8", "surrogatepass")).hexdigest()[:20]
    return f"{folder}/{_UNSAFE.sub('-', name.lower())[:_SHOWN].strip('-')}.{digest}.html"


def numbered(path: str, page: int) -> str:
    """Return the path of a page of a list, from 1."""
    return path if page == 1 else f"{path.removesuffix('.html')}.p{page}.html"


def safe_link(url: str) -> str:
    """Return an https address; "" for any other, which a browser could take for a script."""
    return url if url.startswith("https://") else ""


class PageClock:
    """Times as a page shows them.

    Args:
        now: The moment from which ages count, in UTC.
        zone, zone_name: The zone of shown times, and its name.
    """

    def __init__(self, now: datetime, zone: tzinfo, zone_name: str) -> None:
        self.now = now
        self.zone_name = zone_name
        self._zone = zone

    def __call__(self, text: str) -> Markup:
        """Return a time (RFC 3339) with its age; nothing if it can't be read."""
        time = time_of(text)
        if time is None:
            return Markup("")
        passed = Markup(' <span class="age">{} ago</span>').format(age(self.now - time))
        return self.moment(time) + passed

    def local(self, time: datetime) -> datetime:
        """Return a time in the zone of shown times."""
        try:
            return time.astimezone(self._zone)
        except OverflowError:  # the year 1 or 9999, in another zone
            return time

    def moment(self, time: datetime) -> Markup:
        """Return a time without its age."""
        shown = self.local(time)
        # Most readers know the zone from the foot of the page; the title says it.
        return Markup(
            '<time datetime="{:%Y-%m-%dT%H:%M:%SZ}" title="{:%Y-%m-%d %H:%M:%S} {}">{}</time>'
        ).format(time, shown, self.zone_name, f"{shown:%Y-%m-%d %H:%M}")


def rendered(template: str, depth: int, values: Mapping[str, Any], script: str = "") -> str:
    """Return a page as HTML, from its template and the common style.

    Args:
        template: The name of its template.
        depth: The number of folders that it is below the site's root.
        values: The template's values.
        script: The address of our script on a live page, whose policy then allows it; "" in written files,
            which have none.
    """
    environment, style = _environment()
    made: str = environment.get_template(template).render(
        values,
        root="../" * depth,
        style=Markup(style),  # noqa: S704 - ours
        policy=live_policy() if script else policy(),
        script=script,
    )
    return made


def policy() -> str:
    """Return the Content-Security-Policy of a file: its own style, and nothing else."""
    digest = b64encode(hashlib.sha256(_environment()[1].encode()).digest()).decode()
    return f"default-src 'none'; style-src 'sha256-{digest}'; base-uri 'none'; form-action 'none'"


def live_policy() -> str:
    """Return the Content-Security-Policy of a page with a script: ours, which asks our listener alone."""
    allowed = "script-src 'self'; connect-src 'self'; form-action 'self'"
    return policy().replace("form-action 'none'", allowed)


def script_text(name: str) -> str:
    """Return a script of ours."""
    environment, _ = _environment()
    assert environment.loader is not None
    return environment.loader.get_source(environment, name)[0]


@cache
def _environment() -> tuple[Environment, str]:
    """Return the environment, and the style of every page."""
    environment = Environment(
        loader=PackageLoader("reconciler.pages"),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=_visible,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    assert environment.loader is not None
    style = environment.loader.get_source(environment, "style.css")[0]
    return environment, re.sub(r"\s*\n\s*", "", style)


def _visible(value: Any) -> Any:
    """Return a text with its invisible characters escaped, as a terminal gets it; "" for None."""
    if isinstance(value, Markup):
        return value
    return one_line(value) if isinstance(value, str) else "" if value is None else value
