"""Who may ask for what: the Host and Origin of a request, logins, form tokens, and the headers of every answer.

- *Host* must be a name of the dashboard. Another name that resolves to this address is DNS rebinding.
- *Origin* of every POST must be that Host, so that no other site posts in a visitor's name.
- Each form carries a token that depends on the visitor's session cookie. The cookie is HttpOnly and SameSite=Strict.
- Logins that fail are slowed down, all together; few may wait; secrets are compared in constant time.
- The content security policy allows this origin alone, and no inline script or style.
"""

from __future__ import annotations

import asyncio
import hmac
import secrets
import time
from hashlib import sha256
from typing import Final
from urllib.parse import urlsplit

from starlette.requests import Request
from starlette.responses import PlainTextResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from klamm.dashboard.settings import DashboardSettings

SESSION_SECONDS: Final = 12 * 3600
BODY_BYTES_MAX: Final = 1 << 20
FAILURE_PAUSE: Final = 1.0
FAILURE_PAUSE_MAX: Final = 30.0
LOGINS_WAITING_MAX: Final = 16
"""Attempts that may wait for their turn. A stranger could otherwise fill memory with them."""
OPEN_PATHS: Final = ("/login", "/static/", "/healthz")
"""What a visitor who has not logged in may ask for."""
TOKEN_FIELD: Final = "form_token"

HEADERS: Final = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
        "form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "same-origin",  # no-referrer would make browsers send `Origin: null` with our own forms
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}


class TooManyLogins(Exception):
    """Nothing was compared."""


class Session:
    """A visitor's cookie: a random id, when it ends, whether it has logged in, and a signature over these."""

    def __init__(self, identity: str, ends_at: int, has_login: bool) -> None:
        self.identity = identity
        self.ends_at = ends_at
        self.has_login = has_login


class Guard:
    """Sessions and form tokens. The key lives as long as the process: a restart ends all sessions."""

    def __init__(self, settings: DashboardSettings, port: int) -> None:
        self._settings = settings
        self._key = secrets.token_bytes(32)
        self.hosts = settings.allowed_hosts(port)
        self.cookie = f"klamm_dashboard_{port}"  # browsers do not keep cookies of two ports apart
        self._failures = 0
        self._turn = asyncio.Lock()
        self._logging_in = 0

    def new_session(self, *, has_login: bool) -> Session:
        return Session(secrets.token_urlsafe(18), int(time.time()) + SESSION_SECONDS, has_login)

    def session_of(self, request: Request) -> Session | None:
        """None if there is no cookie, or it was not signed here, or it has ended."""
        text, _, signature = request.cookies.get(self.cookie, "").rpartition(".")
        if not text or not hmac.compare_digest(signature.encode(), self._sign("session", text).encode()):
            return None
        identity, ends_at, has_login = text.split(".")
        session = Session(identity, int(ends_at), has_login == "1")
        return session if session.ends_at > time.time() else None

    def set_cookie(self, response: Response, session: Session) -> None:
        text = f"{session.identity}.{session.ends_at}.{int(session.has_login)}"
        response.set_cookie(
            self.cookie,
            f"{text}.{self._sign('session', text)}",
            max_age=SESSION_SECONDS,
            httponly=True,
            samesite="strict",
            secure=self._settings.speaks_tls,
        )

    def form_token(self, session: Session) -> str:
        return self._sign("form", session.identity)

    def is_form_token(self, session: Session | None, token: str) -> bool:
        return session is not None and hmac.compare_digest(self.form_token(session).encode(), token.encode())

    def may_enter(self, request: Request, session: Session | None) -> bool:
        if not self._settings.has_login or (session is not None and session.has_login):
            return True
        scheme, _, token = request.headers.get("authorization", "").partition(" ")
        return bool(self._settings.token) and scheme.lower() == "bearer" and _equal(token, self._settings.token)

    async def log_in(self, password: str) -> bool:
        """One attempt at a time, and after failures with a growing pause, whatever address it comes from. Raises
        TooManyLogins if the line is full."""
        if self._logging_in > LOGINS_WAITING_MAX:
            raise TooManyLogins
        self._logging_in += 1
        try:
            async with self._turn:
                if self._failures:
                    await asyncio.sleep(min(FAILURE_PAUSE * 2 ** min(self._failures - 1, 10), FAILURE_PAUSE_MAX))
                is_right = bool(self._settings.password) and _equal(password, self._settings.password)
                self._failures = 0 if is_right else self._failures + 1
                return is_right
        finally:
            self._logging_in -= 1

    def _sign(self, purpose: str, text: str) -> str:
        return hmac.new(self._key, f"{purpose}:{text}".encode(), sha256).hexdigest()


def _equal(given: str, secret: str) -> bool:
    return hmac.compare_digest(sha256(given.encode()).digest(), sha256(secret.encode()).digest())


class SecurityMiddleware:
    """Refuses before anything else runs, and puts the headers on every answer."""

    def __init__(self, app: ASGIApp, guard: Guard, settings: DashboardSettings) -> None:
        self._app = app
        self._guard = guard
        self._settings = settings

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        request = Request(scope)
        session = self._guard.session_of(request)
        is_new = session is None
        if session is None:
            session = self._guard.new_session(has_login=False)
        scope.setdefault("state", {})["session"] = session
        refusal = self._refusal(request, None if is_new else session)

        async def with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                own = [(name.lower().encode(), value.encode()) for name, value in HEADERS.items()]
                set_here = {name for name, _ in message["headers"]}
                message["headers"] = [*message["headers"], *(pair for pair in own if pair[0] not in set_here)]
                if is_new and refusal is None and b"set-cookie" not in set_here:
                    cookie = Response()
                    self._guard.set_cookie(cookie, session)
                    message["headers"] += [pair for pair in cookie.raw_headers if pair[0] == b"set-cookie"]
            await send(message)

        if refusal is not None:
            await refusal(scope, receive, with_headers)
            return
        await self._app(scope, receive, with_headers)

    def _refusal(self, request: Request, session: Session | None) -> Response | None:
        host = request.headers.get("host", "").lower()
        if host not in self._guard.hosts:
            return _refused(421, "This is not a name of the dashboard. If it should be, start it with --host-name.")
        if request.method not in ("GET", "HEAD") and not self._is_own_origin(request, host):
            return _refused(403, "This form was sent from another site.")
        if request.method not in ("GET", "HEAD") and not _is_small(request):
            return _refused(413, f"A form may have at most {BODY_BYTES_MAX} bytes, and must say how many it has.")
        path = request.url.path
        is_open = path in OPEN_PATHS or path.startswith("/static/")
        if not is_open and not self._guard.may_enter(request, session):
            if request.method == "GET" and path != "/live":
                return RedirectResponse("/login", 303)
            return _refused(401, "Log in first.")
        if self._settings.read_only and request.method not in ("GET", "HEAD") and path not in ("/login", "/logout"):
            return _refused(403, "This dashboard is read-only.")
        return None

    def _is_own_origin(self, request: Request, host: str) -> bool:
        origin = urlsplit(request.headers.get("origin", ""))
        scheme = "https" if self._settings.speaks_tls else "http"
        return origin.scheme == scheme and origin.netloc.lower() == host


def _refused(status: int, text: str) -> Response:
    return PlainTextResponse(f"{text}\n", status)


def _is_small(request: Request) -> bool:
    length = request.headers.get("content-length", "")
    return length.isdecimal() and int(length) <= BODY_BYTES_MAX
