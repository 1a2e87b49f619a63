"""Settings in which the brokers of a cluster differ. Pure.

Brokers of different kinds or versions know different keys: a key that a broker does not know is no difference. Nor are
the keys that must differ, unless they are asked for.

>>> differences({1: {"num.io.threads": "8", "broker.id": "1"}, 2: {"num.io.threads": "4", "broker.id": "2"}})
[Difference(key='num.io.threads', values={1: '8', 2: '4'})]
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

OWN_TO_EACH: Final = frozenset(
    {
        *("broker.id", "broker.rack", "node.id", "host.name", "port", "listeners", "log.dir", "log.dirs"),
        *("advertised.host.name", "advertised.listeners", "advertised.port", "klamm.http.listener"),
        *("ssl.keystore.location", "metadata.log.dir", "klamm.state.change.log.dir"),
    }
)
"""Keys whose values belong to one broker."""


class Difference(NamedTuple):
    key: str
    values: dict[int, str | None]
    """By broker; only brokers that know the key."""

    def outliers(self) -> list[int]:
        """The brokers that do not have the most frequent value; all of them if none is the most frequent."""
        counts: dict[str | None, int] = {}
        for value in self.values.values():
            counts[value] = counts.get(value, 0) + 1
        most = max(counts.values())
        usual = [value for value, times in counts.items() if times == most]
        if len(usual) > 1:
            return sorted(self.values)
        return sorted(broker for broker, value in self.values.items() if value != usual[0])


def differences(settings: Mapping[int, Mapping[str, str | None]], *, with_own: bool = False) -> list[Difference]:
    """`settings` are the values in effect, by broker. Secrets have no value, so that they are equal here."""
    found = []
    for key in sorted({key for values in settings.values() for key in values}):
        if key in OWN_TO_EACH and not with_own:
            continue
        values = {broker: settings[broker][key] for broker in sorted(settings) if key in settings[broker]}
        if len(set(values.values())) > 1:
            found.append(Difference(key, values))
    return found
