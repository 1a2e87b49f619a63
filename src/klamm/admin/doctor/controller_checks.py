"""Checks of the place itself, of the controller and of the brokers' registrations."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator
from typing import Final

from klamm.admin.doctor.finding import Finding, Severity
from klamm.admin.doctor.observation import STUCK_MS, Observation
from klamm.model.ids import BrokerId
from klamm.model.wording import count
from klamm.zookeeper.znodes import broker_id, controller, controller_epoch, document

MIGRATION_PATH: Final = "/migration"
MOVE: Final = "klamm controller move"
SHOWN_MAX: Final = 5


def is_kafka(seen: Observation) -> Iterator[Finding]:
    """A wrong chroot looks like an empty cluster."""
    if "brokers" in seen.tree.root:
        return
    chroots = sorted(name for name, below in seen.tree.below_root.items() if "brokers" in below)
    there = f"; Kafka's znodes are below /{', /'.join(chroots)}" if chroots else ""
    cure = f"add the chroot to the address: --zookeeper HOST:PORT/{chroots[0]}" if chroots else "check the address"
    names = ", ".join(seen.tree.root) or "nothing"
    yield Finding(Severity.CRITICAL, "wrong-chroot", "/", f"no /brokers here, only {names}{there}", cure)


def has_controller(seen: Observation) -> Iterator[Finding]:
    node = seen.tree.controller
    if node is None:
        if seen.sessions:
            evidence = f"absent, although {len(seen.sessions)} brokers are registered"
            yield Finding(Severity.CRITICAL, "no-controller", controller.PATH, evidence, MOVE)
        return
    if controller.PATH in seen.broken:
        evidence = f"names no broker: {seen.broken[controller.PATH]}"
        yield Finding(Severity.CRITICAL, "controller-unreadable", controller.PATH, evidence, MOVE)
        return
    if not node.stat.ephemeral_owner:
        yield _persistent(seen)
        return
    session = seen.sessions.get(seen.controller) if seen.controller is not None else None
    if session is None:
        evidence = f"names broker {seen.controller}, which is not registered"
        yield Finding(Severity.CRITICAL, "controller-not-registered", controller.PATH, evidence, MOVE)
    elif session != node.stat.ephemeral_owner:
        evidence = (
            f"names broker {seen.controller} (session 0x{session:x}), but session "
            f"0x{node.stat.ephemeral_owner:x} holds it: the named broker does not act"
        )
        yield Finding(Severity.CRITICAL, "controller-not-acting", controller.PATH, evidence, MOVE)


def _persistent(seen: Observation) -> Finding:
    if seen.tree.migration is not None:
        evidence = "is persistent: a KRaft controller leads the brokers during a migration"
        return Finding(Severity.INFO, "kraft-migration", controller.PATH, evidence, "finish or roll back the migration")
    evidence = "is persistent, and no migration to KRaft is recorded: it outlives every broker and blocks elections"
    return Finding(
        Severity.CRITICAL, "controller-persistent", controller.PATH, evidence, "zookeeper-shell HOST delete /controller"
    )


def migration_is_complete(seen: Observation) -> Iterator[Finding]:
    node, held = seen.tree.migration, seen.tree.controller
    if node is not None and held is not None and held.stat.ephemeral_owner:
        evidence = "left over: a ZooKeeper controller leads, so a migration to KRaft was rolled back or never finished"
        cure = "zookeeper-shell HOST delete /migration, once no KRaft controller runs"
        yield Finding(Severity.WARNING, "migration-left-over", MIGRATION_PATH, evidence, cure)


def epoch_is_right(seen: Observation) -> Iterator[Finding]:
    path = controller_epoch.PATH
    if path in seen.broken:
        yield Finding(Severity.ERROR, "epoch-unreadable", path, seen.broken[path], MOVE)
    elif seen.tree.controller_epoch is None:
        if seen.states:
            yield Finding(Severity.ERROR, "epoch-lost", path, "absent, although partitions have states", MOVE)
    elif seen.epoch is not None:
        newest = max(seen.states.values(), key=lambda state: state.controller_epoch, default=None)
        if newest is not None and newest.controller_epoch > seen.epoch:
            partition = next(name for name, state in seen.states.items() if state is newest)
            evidence = f"is {seen.epoch}, but {partition} was written in epoch {newest.controller_epoch}: it went back"
            cure = f"zookeeper-shell HOST set {path} {newest.controller_epoch}, then {MOVE}"
            yield Finding(Severity.CRITICAL, "epoch-went-back", path, evidence, cure)


def registrations_are_sound(seen: Observation) -> Iterator[Finding]:
    holders: dict[tuple[str, int], list[BrokerId]] = defaultdict(list)
    for name, node in sorted(seen.tree.brokers.items()):
        path = f"{broker_id.PARENT}/{name}"
        if path in seen.broken:
            cure = "fix advertised.listeners of the broker and restart it"
            yield Finding(Severity.ERROR, "registration-broken", path, seen.broken[path], cure)
        if str(document.natural(name)) != name and path not in seen.broken:
            cure = f"zookeeper-shell HOST delete {path}"
            yield Finding(Severity.ERROR, "duplicate-name", path, "the same number as another spelling", cure)
        if not node.stat.ephemeral_owner:
            evidence = "is persistent: the broker counts as alive for ever"
            cure = f"zookeeper-shell HOST delete {path}, then restart the broker"
            yield Finding(Severity.ERROR, "registration-persistent", path, evidence, cure)
    for broker in seen.brokers.values():
        for endpoint in broker.endpoints:
            holders[endpoint.host, endpoint.port].append(broker.id)
    for (host, port), ids in sorted(holders.items()):
        if len(set(ids)) > 1:
            evidence = f"brokers {sorted(set(ids))} both advertise {host}:{port}"
            cure = "give each broker its own advertised.listeners"
            yield Finding(Severity.ERROR, "endpoint-shared", broker_id.path(ids[0]), evidence, cure)


def notifications_are_taken(seen: Observation) -> Iterator[Finding]:
    """A controller removes each notification as soon as it has acted on it."""
    old = sorted(path for path, node in seen.tree.notifications.items() if seen.age_ms(node) > STUCK_MS)
    if old:
        parent = old[0].rpartition("/")[0]
        evidence = f"{count(len(old), 'notification')} older than {STUCK_MS // 60_000} minutes, {old[0]} among them"
        yield Finding(Severity.ERROR, "notifications-stuck", parent, evidence, f"{MOVE}: the controller does not react")


def quarantines(seen: Observation) -> Iterator[Finding]:
    for path in sorted(seen.tree.quarantined):
        cure = "repair the named znode; the quarantine ends by itself"
        yield Finding(Severity.ERROR, "quarantined", path, "a klamm controller set a broken znode aside", cure)


def acls_allow_writes(seen: Observation) -> Iterator[Finding]:
    """What an ACL should be is not known, but znodes of one kind have one ACL: the exception is the mistake."""
    writers = seen.tree.writers
    if not writers:
        return
    (usual, _), *_ = Counter(writers.values()).most_common(1)
    for path, allowed in sorted(writers.items()):
        if not usual <= allowed:
            evidence = (
                f"only {', '.join(sorted(allowed)) or 'no one'} may write it, elsewhere {', '.join(sorted(usual))}"
            )
            cure = f"zookeeper-shell HOST setAcl {path} {','.join(f'{writer}:cdrwa' for writer in sorted(usual))}"
            yield Finding(Severity.ERROR, "acl-read-only", path, evidence, cure)
