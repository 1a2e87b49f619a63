"""The login page, for a dashboard with a password."""

from __future__ import annotations

from typing import Final

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from klamm.dashboard.security import TOKEN_FIELD, TooManyLogins
from klamm.dashboard.web import form_of, web_of

WRONG: Final = "The password is wrong, or the form has expired."
TOO_MANY: Final = "Too many logins wait for an answer. Try again in a minute."


async def page(request: Request) -> Response:
    return _page(request)


def _page(request: Request, status: int = 200, problem: str = "") -> Response:
    web = web_of(request)
    return web.render(request, "login.html", status, problem=problem, takes_password=bool(web.settings.password))


async def enter(request: Request) -> Response:
    web = web_of(request)
    fields = await form_of(request)
    is_ours = web.guard.is_form_token(request.state.session, fields.get(TOKEN_FIELD, ""))
    try:
        if not is_ours or not await web.guard.log_in(fields.get("password", "")):
            return _page(request, 403, WRONG)
    except TooManyLogins:
        return _page(request, 429, TOO_MANY)
    answer = RedirectResponse("/", 303)
    web.guard.set_cookie(answer, web.guard.new_session(has_login=True))
    return answer


async def leave(request: Request) -> Response:
    web = web_of(request)
    fields = await form_of(request)
    answer = RedirectResponse("/login", 303)
    if web.guard.is_form_token(request.state.session, fields.get(TOKEN_FIELD, "")):
        answer.delete_cookie(web.guard.cookie)
    return answer
