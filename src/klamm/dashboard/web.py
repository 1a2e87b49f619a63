"""What every page needs: the observation, the templates, the visitor's session, and forms that are checked."""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any, Final
from urllib.parse import parse_qsl, quote, urlencode

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup
from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response

from klamm import __version__
from klamm.dashboard import formats, pictures
from klamm.dashboard.actions import ActionRefused, ClusterAccess
from klamm.dashboard.feed import Feed
from klamm.dashboard.group_lags import GroupLags
from klamm.dashboard.health import STALE_SECONDS
from klamm.dashboard.observation import Observation
from klamm.dashboard.plans import Plans
from klamm.dashboard.security import TOKEN_FIELD, Guard, Session
from klamm.dashboard.settings import DashboardSettings
from klamm.dashboard.snapshot import ClusterSnapshot
from klamm.model.errors import KlammError
from klamm.model.wording import count

TEMPLATES: Final = Path(__file__).parent / "templates"
NOTICES_MAX: Final = 200
WRITES_AT_ONCE: Final = 8
READS_AT_ONCE: Final = 8
FIELDS_MAX: Final = 100
LIVE_HEADER: Final = "x-klamm-live"
"""Sent by the script of a page when it fetches the page again."""

PAGES: Final = (
    ("/", "Overview"),
    ("/brokers", "Brokers"),
    ("/topics", "Topics"),
    ("/controller", "Controller"),
    ("/timeline", "Timeline"),
    ("/reassignments", "Reassignments"),
    ("/deletions", "Deletions"),
    ("/groups", "Groups"),
    ("/messages", "Messages"),
    ("/configuration", "Configuration"),
    ("/doctor", "Doctor"),
)

Fields = Mapping[str, str]


class Web:
    def __init__(self, settings: DashboardSettings, feed: Feed, port: int) -> None:
        self.settings = settings
        self.feed = feed
        self.guard = Guard(settings, port)
        self.access = ClusterAccess(settings)
        self.streams = 0
        """Visitors who follow live."""
        self._notices: OrderedDict[str, tuple[str, str]] = OrderedDict()
        self.reads = asyncio.Semaphore(READS_AT_ONCE)
        """Taken by pages that ask the cluster themselves."""
        self.examinations = asyncio.Semaphore(1)
        self.groups = GroupLags()
        self.plans = Plans()
        self._heat: tuple[ClusterSnapshot, Markup] | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._writes = asyncio.Semaphore(WRITES_AT_ONCE)
        self._templates = Environment(
            loader=FileSystemLoader(TEMPLATES),
            autoescape=True,
            undefined=StrictUndefined,
            trim_blocks=True,
            lstrip_blocks=True,
        )
        self._templates.filters.update(
            size=formats.size,
            number=formats.number,
            moment=formats.moment,
            clock=formats.clock,
            iso=formats.iso,
            duration=formats.duration,
            segment=segment,
        )
        self._templates.globals.update(pages=PAGES, count=count, version=__version__, link=link)

    def render(self, request: Request, template: str, status: int = 200, **values: Any) -> Response:
        session: Session = request.state.session
        observation = self.feed.current
        now = time.monotonic()
        # While a form is being sent, its page still refreshes itself. The notice is for the page that comes next.
        notice = None if LIVE_HEADER in request.headers else self._notices.pop(session.identity, None)
        page = self._templates.get_template(template).render(
            observation=observation,
            snapshot=observation.shown,
            health=observation.health(now),
            live_key=live_key(observation, now),
            age_s=observation.age_s(now),
            sampled_ms=_wall_ms(observation.load.sampled_at, now),
            path=request.url.path,
            query=dict(request.query_params),
            notice=notice,
            form_token=self.guard.form_token(session),
            cluster_id=observation.shown.cluster_id if observation.shown else "",
            read_only=self.settings.read_only,
            has_login=self.settings.has_login and session.has_login,
            now_ms=int(time.time() * 1000),
            **values,
        )
        return HTMLResponse(page, status)

    async def act(self, request: Request, back: str, action: Callable[[Fields, str], Awaitable[str]]) -> Response:
        """Run the action of a form and show what it says on the page `back`. Failures are said there too."""
        fields = await form_of(request)
        session: Session = request.state.session
        if not self.guard.is_form_token(session, fields.get(TOKEN_FIELD, "")):
            return HTMLResponse("<p>This form has expired. Go back and load the page again.</p>", 403)
        expected = fields.get("cluster_id", "")
        if not expected:
            return HTMLResponse("<p>This form does not say for which cluster it is.</p>", 400)
        try:
            async with self._writes:
                self._notify(session, "good", await action(fields, expected))
        except (KlammError, OSError, TimeoutError) as error:
            self._notify(session, "bad", str(error) or type(error).__name__)
        return RedirectResponse(back, 303)

    def confirmed_ms(self) -> int:
        """When ZooKeeper last said that what the pages show is still true, as people know time."""
        now = time.monotonic()
        return int((time.time() - self.feed.current.age_s(now)) * 1000)

    def heat_map(self, snapshot: ClusterSnapshot) -> Markup:
        """Drawn once for each look, however many visitors follow it."""
        if self._heat is None or self._heat[0] is not snapshot:
            self._heat = (snapshot, pictures.heat_map(snapshot))
        return self._heat[1]

    def keep_task(self, task: asyncio.Task[None]) -> None:
        """A task that goes on after its request."""
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _notify(self, session: Session, level: str, text: str) -> None:
        self._notices[session.identity] = (level, text)
        while len(self._notices) > NOTICES_MAX:
            self._notices.popitem(last=False)


def live_key(observation: Observation, now: float) -> str:
    """Changes when a page would look different, also because what it shows has become too old."""
    age = observation.age_s(now)
    return f"{observation.version} {f'{age:.0f}' if age > STALE_SECONDS else 'fresh'}"


def _wall_ms(at: float | None, now: float) -> int | None:
    """A moment of the monotonic clock as people know it."""
    return None if at is None else int((time.time() - (now - at)) * 1000)


def web_of(request: Request) -> Web:
    web: Web = request.app.state.web
    return web


async def form_of(request: Request) -> dict[str, str]:
    """The fields of a form, the last value of each."""
    body = (await request.body()).decode(errors="replace")
    try:
        return dict(parse_qsl(body, keep_blank_values=True, max_num_fields=FIELDS_MAX))
    except ValueError:
        return {}


def required(fields: Fields, name: str) -> str:
    value = fields.get(name, "").strip()
    if not value:
        raise ActionRefused(f"nothing was done: {name.replace('_', ' ')} is missing")
    return value


def whole_number(fields: Fields, name: str, *, least: int = 0, most: int = 2**31 - 1) -> int:
    text = required(fields, name)
    if not (text.isascii() and text.isdigit() and least <= int(text[:20]) <= most):
        raise ActionRefused(f"nothing was done: {name.replace('_', ' ')} must be a number from {least} to {most}")
    return int(text)


def link(path: str, query: Mapping[str, Any], **changes: Any) -> str:
    """The same page with other parameters; None removes one."""
    kept = {key: value for key, value in {**query, **changes}.items() if value not in (None, "")}
    return f"{path}?{urlencode(kept)}" if kept else path


def segment(text: str) -> str:
    """A name as one segment of a path."""
    return quote(text, safe="")
