"""The dashboard over TLS, with a certificate that the test makes: the login, a secure cookie, a form."""

from __future__ import annotations

import re
import ssl
from contextlib import closing
from datetime import UTC, datetime, timedelta
from http.client import HTTPSConnection
from ipaddress import ip_address
from pathlib import Path
from urllib.parse import urlencode, urlsplit

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from klamm.testing.cluster import KlammCluster

from .browsing import running_dashboard

HOST = "127.0.0.1"
PASSWORD = "correct horse"


def make_certificate(certificate: Path, key: Path) -> None:
    """It signs itself, for an hour."""
    secret = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "klamm dashboard")])
    now = datetime.now(UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(secret.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(hours=1))
        .not_valid_after(now + timedelta(hours=1))
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ip_address(HOST))]), critical=False)
        .sign(secret, hashes.SHA256())
    )
    certificate.write_bytes(made.public_bytes(serialization.Encoding.PEM))
    pem, pkcs8 = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8
    key.write_bytes(secret.private_bytes(pem, pkcs8, serialization.NoEncryption()))


@pytest.mark.klamm(brokers=1)
def test_a_login_over_tls(klamm_cluster: KlammCluster, tmp_path: Path) -> None:
    certificate, key, password = tmp_path / "certificate.pem", tmp_path / "key.pem", tmp_path / "password"
    make_certificate(certificate, key)
    password.write_text(f"{PASSWORD}\n")
    at = ("--bootstrap-server", klamm_cluster.bootstrap, "--zookeeper", klamm_cluster.zookeeper)
    tls = ("--tls-certificate", str(certificate), "--tls-key", str(key), "--password-file", str(password))
    with running_dashboard(tmp_path / "dashboard.log", *at, *tls) as url:
        place = urlsplit(url)
        assert (place.scheme, place.hostname) == ("https", HOST)
        assert place.port is not None
        trusting = ssl.create_default_context(cafile=certificate)
        cookie = ""

        def ask(method: str, path: str, form: dict[str, str] | None = None) -> tuple[int, str]:
            nonlocal cookie
            headers = {"Cookie": cookie, "Origin": url, "Content-Type": "application/x-www-form-urlencoded"}
            with closing(HTTPSConnection(HOST, place.port, context=trusting, timeout=30)) as connection:
                connection.request(method, path, urlencode(form or {}) if method == "POST" else None, headers)
                answer = connection.getresponse()
                status, text, given = answer.status, answer.read().decode(), answer.getheader("set-cookie")
            if given:
                assert "; Secure" in given and "; HttpOnly" in given
                cookie = given.partition(";")[0]
            return status, text

        assert ask("GET", "/")[0] == 303, "the login first"
        found = re.search(r'name="form_token" value="(\w+)"', ask("GET", "/login")[1])
        assert found is not None
        assert ask("POST", "/login", {"password": PASSWORD, "form_token": found[1]})[0] == 303
        assert ask("GET", "/brokers")[0] == 200
        anyone = ssl.create_default_context()
        with (
            closing(HTTPSConnection(HOST, place.port, context=anyone, timeout=30)) as stranger,
            pytest.raises(ssl.SSLCertVerificationError),
        ):
            stranger.connect()
