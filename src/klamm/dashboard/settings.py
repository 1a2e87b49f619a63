"""Where the dashboard listens and who may use it, and the rules that keep it from serving strangers by accident."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from ipaddress import ip_address
from pathlib import Path
from typing import Final

from klamm.model.errors import ConfigError

LOOPBACK_NAMES: Final = ("127.0.0.1", "localhost", "[::1]")
SECRET_BYTES_MIN: Final = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class DashboardSettings:
    bootstrap: str
    zookeeper: str
    host: str = "127.0.0.1"
    port: int = 0
    """0 picks a free port."""
    read_only: bool = False
    password: str = ""
    """Asked for on a page of its own."""
    token: str = ""
    """For programs and proxies: `Authorization: Bearer TOKEN`."""
    certificate: Path | None = None
    key: Path | None = None
    behind_proxy: bool = False
    """A proxy in front of it speaks TLS."""
    host_names: Sequence[str] = ()
    """Names under which browsers reach it, besides its own address: `dashboard.example.com` or with `:port`."""
    events: Sequence[Path] = ()
    """Directories with event files of klamm brokers."""

    @property
    def is_loopback(self) -> bool:
        return self.host == "localhost" or (_is_address(self.host) and ip_address(self.host).is_loopback)

    @property
    def has_login(self) -> bool:
        return bool(self.password or self.token)

    @property
    def speaks_tls(self) -> bool:
        """Whether browsers see https."""
        return self.certificate is not None or self.behind_proxy

    def check(self) -> None:
        """Raises ConfigError with the rule that is broken."""
        if (self.certificate is None) != (self.key is None):
            raise ConfigError("--tls-certificate and --tls-key belong together")
        for name, secret in (("password", self.password), ("token", self.token)):
            if secret and len(secret) < SECRET_BYTES_MIN:
                raise ConfigError(f"the {name} has fewer than {SECRET_BYTES_MIN} characters")
        if self.is_loopback and not self.behind_proxy:
            return
        where = "behind a proxy" if self.behind_proxy else f"on {self.host}"
        if not self.has_login:
            raise ConfigError(f"{where} the dashboard needs --password-file or --token-file: it can change the cluster")
        if not self.speaks_tls:
            raise ConfigError(
                f"{where} the dashboard needs --tls-certificate and --tls-key, or --behind-proxy if a proxy speaks TLS"
            )
        if not self.host_names and (not _is_address(self.host) or ip_address(self.host).is_unspecified):
            raise ConfigError(f"{where} the dashboard needs --host-name, the name under which browsers reach it")

    def allowed_hosts(self, port: int) -> frozenset[str]:
        """What the Host header of a request may be. Any other name is another site that resolves to this address."""
        own = LOOPBACK_NAMES if self.is_loopback else (f"[{self.host}]" if ":" in self.host else self.host,)
        with_port = {f"{name}:{port}" for name in (*own, *self.host_names)}
        return frozenset({name.lower() for name in (*with_port, *self.host_names)})


def _is_address(host: str) -> bool:
    try:
        ip_address(host)
    except ValueError:
        return False
    return True
