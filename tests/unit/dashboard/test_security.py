"""Who is let in: hosts, origins, forms, logins; and the rules for listening elsewhere than on 127.0.0.1."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient

from klamm.dashboard import security
from klamm.dashboard.security import LOGINS_WAITING_MAX, Guard, TooManyLogins
from klamm.dashboard.settings import DashboardSettings
from klamm.model.errors import ConfigError
from klamm.simulation.loop import run_in_virtual_time

from .clusters import HEALTHY, HOST, URL, dashboard, observed, snapshot

FORM = {"name": "t", "partitions": "1", "replication_factor": "1", "cluster_id": "the-cluster"}
PROXY = {"behind_proxy": True, "host_names": ("klamm.example.com",)}


def client(**options: Any) -> TestClient:
    return dashboard(observed(snapshot(HEALTHY)), **options)


def token_in(page: str) -> str:
    found = re.search(r'name="form_token" value="([0-9a-f]{64})"', page)
    assert found is not None
    return found[1]


def test_another_host_name_is_refused() -> None:
    visitor = client()
    assert visitor.get("/").status_code == 200
    assert visitor.get("/", headers={"host": "localhost:8080"}).status_code == 200
    for host in ("evil.example.com", "evil.example.com:8080", "127.0.0.1", "127.0.0.1:80", ""):
        refused = visitor.get("/", headers={"host": host})
        assert refused.status_code == 421, host
        assert "orders" not in refused.text


def test_every_answer_has_the_headers() -> None:
    visitor = client()
    answers = [visitor.get(path) for path in ("/", "/topics/nowhere", "/static/live.js")]
    answers.append(visitor.get("/", headers={"host": "evil"}))
    answers.append(visitor.post("/topics", data=FORM))
    for answer in answers:
        policy = answer.headers["content-security-policy"]
        assert "default-src 'none'" in policy and "unsafe" not in policy and "frame-ancestors 'none'" in policy
        assert answer.headers["x-content-type-options"] == "nosniff"
    cookie = answers[0].headers["set-cookie"]
    assert "HttpOnly" in cookie and "SameSite=strict" in cookie and "Secure" not in cookie


def test_no_page_has_inline_script_or_style() -> None:
    visitor = client()
    for path in (
        "/",
        "/brokers",
        "/brokers/1",
        "/topics",
        "/topics/orders",
        "/controller",
        "/timeline",
        "/reassignments",
        "/doctor",
    ):
        page = visitor.get(path).text
        assert not re.search(r"<script(?![^>]*\bsrc=)", page), path
        assert not re.search(r"\bstyle=|\bon[a-z]+=\"|<style|javascript:", page), path
        assert not re.search(r'(src|href)="(https?:)?//', page), path


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"origin": "null"},
        {"origin": "http://evil.example.com"},
        {"origin": f"https://{HOST}"},
        {"origin": "http://127.0.0.1:1"},
    ],
)
def test_a_form_of_another_site_is_refused(headers: dict[str, str]) -> None:
    visitor = client()
    token = token_in(visitor.get("/topics").text)
    refused = visitor.post("/topics", data={**FORM, "form_token": token}, headers=headers)
    assert (refused.status_code, refused.text) == (403, "This form was sent from another site.\n")


def test_a_form_needs_the_token_of_its_visitor() -> None:
    visitor, other = client(), client()
    token = token_in(visitor.get("/topics").text)
    other.get("/topics")
    for sender, given in ((visitor, ""), (visitor, "0" * 64), (other, token)):
        refused = sender.post("/topics", data={**FORM, "form_token": given}, headers={"origin": URL})
        assert refused.status_code == 403, given
        assert "expired" in refused.text
    nameless = {**FORM, "form_token": token, "cluster_id": ""}
    assert visitor.post("/topics", data=nameless, headers={"origin": URL}).status_code == 400
    taken = visitor.post("/topics", data={**FORM, "form_token": token}, headers={"origin": URL})
    assert (taken.status_code, taken.headers["location"]) == (303, "/topics")
    assert "no broker answers at 127.0.0.1:1" in visitor.get("/topics").text, "it was tried, and the page says so"
    assert "no broker answers" not in visitor.get("/topics").text, "once"


def test_read_only_changes_nothing() -> None:
    visitor = client(read_only=True)
    page = visitor.get("/topics").text
    assert 'method="post"' not in page
    refused = visitor.post("/topics", data=FORM, headers={"origin": URL})
    assert (refused.status_code, refused.text) == (403, "This dashboard is read-only.\n")


def test_a_large_form_is_refused() -> None:
    refused = client().post("/topics", content=b"x" * (security.BODY_BYTES_MAX + 1), headers={"origin": URL})
    assert refused.status_code == 413


def test_login(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(security, "FAILURE_PAUSE", 0.0)
    visitor = client(password="correct horse")
    assert visitor.get("/").headers["location"] == "/login"
    assert visitor.get("/live").status_code == 401
    page = visitor.get("/login").text
    assert "orders" not in page and "Healthy" not in page
    wrong = visitor.post("/login", data={"password": "guess", "form_token": token_in(page)}, headers={"origin": URL})
    assert (wrong.status_code, visitor.get("/").status_code) == (403, 303)
    right = {"password": "correct horse", "form_token": token_in(visitor.get("/login").text)}
    assert visitor.post("/login", data={**right, "form_token": ""}, headers={"origin": URL}).status_code == 403
    assert visitor.post("/login", data=right, headers={"origin": URL}).headers["location"] == "/"
    page = visitor.get("/").text
    assert "Healthy" in page
    visitor.post("/logout", data={"form_token": token_in(page)}, headers={"origin": URL})
    assert visitor.get("/").headers["location"] == "/login"


def test_a_cookie_cannot_be_forged() -> None:
    visitor = client(password="correct horse")
    visitor.get("/login")
    (name,) = visitor.cookies.keys()
    cookie = visitor.cookies[name]
    identity, ends_at, _, signature = cookie.split(".")
    for forged in (f"{identity}.{ends_at}.1.{signature}", "x.9999999999.1.", "1", ".", "a.b.c.d"):
        visitor.cookies.clear()
        visitor.cookies.set(name, forged)
        assert visitor.get("/").headers.get("location") == "/login", forged


def test_a_token_for_programs() -> None:
    visitor = client(token="0123456789abcdef")
    assert visitor.get("/", headers={"authorization": "Bearer 0123456789abcdef"}).status_code == 200
    for wrong in ("Bearer no", "Basic 0123456789abcdef", ""):
        assert visitor.get("/", headers={"authorization": wrong}).status_code == 303


def test_failed_logins_slow_down(monkeypatch: pytest.MonkeyPatch) -> None:
    pauses: list[float] = []

    async def sleep(seconds: float) -> None:
        pauses.append(seconds)

    visitor = client(password="correct horse")
    token = token_in(visitor.get("/login").text)
    monkeypatch.setattr("klamm.dashboard.security.asyncio.sleep", sleep)
    for _ in range(4):
        visitor.post("/login", data={"password": "guess", "form_token": token}, headers={"origin": URL})
    assert pauses == [1.0, 2.0, 4.0]


def test_few_logins_may_wait() -> None:
    async def main() -> None:
        guard = Guard(DashboardSettings(bootstrap="b", zookeeper="z", password="correct horse"), 1)
        assert not await guard.log_in("guess")
        waiting = [asyncio.create_task(guard.log_in("guess")) for _ in range(LOGINS_WAITING_MAX + 1)]
        await asyncio.sleep(0)
        with pytest.raises(TooManyLogins):
            await guard.log_in("correct horse")
        waiting[-1].cancel()
        await asyncio.sleep(0)
        assert await guard.log_in("correct horse"), "a visitor who gave up leaves the line"
        assert await asyncio.gather(*waiting[:-1]) == [False] * LOGINS_WAITING_MAX
        assert await guard.log_in("correct horse"), "the line is empty again"

    run_in_virtual_time(main())


def test_a_full_line_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    visitor = client(password="correct horse")
    token = token_in(visitor.get("/login").text)
    monkeypatch.setattr("klamm.dashboard.security.LOGINS_WAITING_MAX", -1)
    answer = visitor.post("/login", data={"password": "x", "form_token": token}, headers={"origin": URL})
    assert answer.status_code == 429 and "Too many logins wait" in answer.text


@pytest.mark.parametrize(
    ("options", "refusal"),
    [
        ({}, ""),
        ({"host": "::1"}, ""),
        ({"host": "0.0.0.0"}, "on 0.0.0.0 the dashboard needs --password-file"),
        ({"host": "10.0.0.1", "password": "12345678"}, "needs --tls-certificate"),
        ({"host": "10.0.0.1", "password": "12345678", "certificate": Path("c"), "key": Path("k")}, ""),
        ({"host": "0.0.0.0", "password": "12345678", "certificate": Path("c"), "key": Path("k")}, "--host-name"),
        ({"host": "0.0.0.0", "token": "12345678", **PROXY}, ""),
        (PROXY, "behind a proxy the dashboard needs --password-file"),
        ({"token": "12345678", **PROXY}, ""),
        ({"certificate": Path("c")}, "belong together"),
        ({"password": "short"}, "fewer than 8"),
    ],
)
def test_where_it_may_listen(options: dict[str, Any], refusal: str) -> None:
    settings = DashboardSettings(bootstrap="b", zookeeper="z", **options)
    if refusal:
        with pytest.raises(ConfigError, match=re.escape(refusal)):
            settings.check()
    else:
        settings.check()


def test_behind_a_proxy_browsers_see_https() -> None:
    visitor = client(password="correct horse", **PROXY)
    at = {"host": "klamm.example.com"}
    answer = visitor.get("/login", headers=at)
    assert answer.status_code == 200 and "Secure" in answer.headers["set-cookie"]
    plain = visitor.post("/login", data={}, headers={**at, "origin": "http://klamm.example.com"})
    assert plain.text == "This form was sent from another site.\n"
