"""The login page, for a dashboard with a password."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from klamm.dashboard.security import TOKEN_FIELD
from klamm.dashboard.web import form_of, web_of


async def page(request: Request) -> Response:
    web = web_of(request)
    return web.render(request, "login.html", wrong=False, takes_password=bool(web.settings.password))


async def enter(request: Request) -> Response:
    web = web_of(request)
    fields = await form_of(request)
    is_ours = web.guard.is_form_token(request.state.session, fields.get(TOKEN_FIELD, ""))
    if not is_ours or not await web.guard.log_in(fields.get("password", "")):
        return web.render(request, "login.html", 403, wrong=True, takes_password=bool(web.settings.password))
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
