"""The dashboard as a Starlette application: the routes, and nothing else."""

from __future__ import annotations

from pathlib import Path

from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles

from klamm.dashboard.feed import Feed
from klamm.dashboard.live import live
from klamm.dashboard.security import SecurityMiddleware
from klamm.dashboard.settings import DashboardSettings
from klamm.dashboard.views import (
    brokers,
    configuration,
    controller,
    deletions,
    doctor,
    groups,
    leaders,
    login,
    messages,
    overview,
    reassignments,
    timeline,
    topics,
)
from klamm.dashboard.web import Web, web_of


def application(settings: DashboardSettings, feed: Feed, port: int) -> Starlette:
    web = Web(settings, feed, port)
    app = Starlette(
        routes=[
            Route("/", overview.page),
            Route("/brokers", brokers.all_brokers),
            Route("/brokers/{broker:int}", brokers.one_broker),
            Route("/topics", topics.all_topics, methods=["GET"]),
            Route("/topics", topics.create, methods=["POST"]),
            Route("/topics/{topic}", topics.one_topic, methods=["GET"]),
            Route("/topics/{topic}/delete", topics.delete, methods=["POST"]),
            Route("/topics/{topic}/grow", topics.grow, methods=["POST"]),
            Route("/leaders/elect", leaders.elect, methods=["POST"]),
            Route("/controller", controller.page),
            Route("/controller/move", controller.move, methods=["POST"]),
            Route("/controller/candidates/add", controller.add_candidate, methods=["POST"]),
            Route("/controller/candidates/remove", controller.remove_candidate, methods=["POST"]),
            Route("/timeline", timeline.page),
            Route("/reassignments", reassignments.page),
            Route("/reassignments/plan", reassignments.make, methods=["POST"]),
            Route("/reassignments/start", reassignments.start, methods=["POST"]),
            Route("/reassignments/cancel", reassignments.cancel, methods=["POST"]),
            Route("/reassignments/unthrottle", reassignments.unthrottle, methods=["POST"]),
            Route("/deletions", deletions.page),
            Route("/groups", groups.all_groups),
            Route("/groups/{group:path}/plan", groups.plan, methods=["POST"]),
            Route("/groups/{group:path}/reset", groups.execute, methods=["POST"]),
            Route("/groups/{group:path}", groups.one_group),
            Route("/messages", messages.page),
            Route("/configuration", configuration.page),
            Route("/doctor", doctor.page),
            Route("/live", live),
            Route("/login", login.page, methods=["GET"]),
            Route("/login", login.enter, methods=["POST"]),
            Route("/logout", login.leave, methods=["POST"]),
            Route("/healthz", _healthz),
            Mount("/static", StaticFiles(directory=Path(__file__).parent / "static")),
        ],
        middleware=[Middleware(SecurityMiddleware, guard=web.guard, settings=settings)],
        exception_handlers={404: _not_found},
    )
    app.state.web = web
    return app


async def _healthz(_request: Request) -> Response:
    return PlainTextResponse("ok\n")


async def _not_found(request: Request, _error: Exception) -> Response:
    return web_of(request).render(request, "not_found.html", 404)
