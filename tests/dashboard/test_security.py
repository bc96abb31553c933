"""Who is answered: this machine only, or whoever has the token; nobody under a foreign name."""

import pytest

from dashboard import security
from dashboard.app import create_app


@pytest.fixture
def local(captures, loader):
    return create_app(captures("mlp"), loader=loader).server.test_client()


@pytest.fixture
def guarded(captures, loader):
    return create_app(
        captures("mlp"), loader=loader, host="0.0.0.0", token="secret-token"
    ).server.test_client()


@pytest.mark.parametrize("host", ["127.0.0.1:8791", "localhost:8791", "[::1]:8791", "LOCALHOST"])
def test_local_names_are_answered(local, host):
    assert local.get("/", headers={"Host": host}).status_code == 200


@pytest.mark.parametrize("host", ["evil.example:8791", "127.0.0.1.evil.example", "[::1", "", "a b"])
def test_foreign_names_are_refused(local, host):
    answer = local.get("/", headers={"Host": host})
    assert answer.status_code in (400, 403)
    assert b"_dash" not in answer.data


def test_requests_from_other_sites_are_refused(local):
    headers = {"Host": "127.0.0.1:8791", "Origin": "http://evil.example"}
    assert local.post("/_dash-update-component", headers=headers, json={}).status_code == 403
    same = {"Host": "127.0.0.1:8791", "Origin": "http://127.0.0.1:8791"}
    assert local.get("/_dash-layout", headers=same).status_code == 200


@pytest.mark.parametrize(
    "path", ["/", "/_dash-layout", "/_dash-dependencies", "/assets/style.css", "/x/timeline"]
)
def test_without_the_token_nothing_is_given(guarded, path):
    for query in ("", "?token=", "?token=secret-toke", "?token=secret-tokenx", "?token=%C3%A9"):
        answer = guarded.get(path + query)
        assert answer.status_code == 401
        assert b"secret" not in answer.data


def test_the_token_opens_the_door_and_leaves_the_address(guarded):
    answer = guarded.get("/?token=secret-token")
    assert answer.status_code == 302
    assert "token" not in answer.headers["Location"]
    cookie = answer.headers["Set-Cookie"]
    assert "HttpOnly" in cookie
    assert "SameSite=Strict" in cookie
    assert guarded.get("/_dash-layout").status_code == 200


def test_tokens_are_compared_in_constant_time(monkeypatch):
    asked = []

    def spy(a, b):
        asked.append((a, b))
        return a == b

    monkeypatch.setattr(security.hmac, "compare_digest", spy)
    assert security.same("abc", "abc")
    assert not security.same("abd", "abc")
    assert not security.same(None, "abc")
    assert asked == [(b"abc", b"abc"), (b"abd", b"abc")]
    assert len({security.new_token() for _ in range(20)}) == 20
    assert len(security.new_token()) >= 43


def test_pages_may_load_nothing_from_elsewhere(local):
    headers = local.get("/", headers={"Host": "localhost"}).headers
    policy = dict(part.strip().split(" ", 1) for part in headers["Content-Security-Policy"].split(";"))
    assert policy["default-src"] == "'self'"
    assert "unsafe-inline" not in policy["script-src"]
    assert "unsafe-eval" not in policy["script-src"]
    assert policy["frame-ancestors"] == "'none'"
    assert headers["X-Content-Type-Options"] == "nosniff"


def test_dash_offers_no_other_doors(local):
    for path in ("/_mcp", "/_alive", "/console"):
        answer = local.get(path, headers={"Host": "localhost"})
        assert answer.status_code == 404 or b"react-entry-point" in answer.data


@pytest.mark.parametrize(
    "path", ["/assets/../app.py", "/assets/..%2fapp.py", "/assets/%2e%2e/%2e%2e/etc/passwd"]
)
def test_assets_stay_in_their_folder(local, path):
    answer = local.get(path, headers={"Host": "localhost"})
    assert b"create_app" not in answer.data
    assert b"root:" not in answer.data
