"""The group coordinator: the calls of the group APIs, on groups that this broker owns.

Each call checks that the group's partition is owned, lets the state machine decide (`join`, `rebalance`), and has the
outcome carried out (`execution`). Nothing is awaited in between. KafkaError is the answer to the whole request.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from random import Random
from typing import NamedTuple
from uuid import UUID

from klamm.broker.appends import Appends
from klamm.broker.coordinators.groups import join as joins
from klamm.broker.coordinators.groups import rebalance
from klamm.broker.coordinators.groups.commits import Commits
from klamm.broker.coordinators.groups.events import (
    NO_MEMBER,
    Join,
    JoinAnswer,
    LeavingMember,
    Sync,
    SyncAnswer,
)
from klamm.broker.coordinators.groups.execution import Execution
from klamm.broker.coordinators.groups.group import Group, State
from klamm.broker.coordinators.groups.group_log import GroupLog
from klamm.broker.coordinators.groups.loading import GroupLoading
from klamm.broker.coordinators.groups.rebalance import Rules
from klamm.broker.coordinators.groups.registry import GroupRegistry
from klamm.broker.coordinators.internal_topic import InternalTopic
from klamm.broker.handlers.slices import Pool, at_once
from klamm.broker.replica_manager import ReplicaManager
from klamm.model.config import BrokerConfig
from klamm.model.errors import ErrorCode, KafkaError
from klamm.model.requests import ClientConnection


class DescribedMember(NamedTuple):
    member_id: str
    instance_id: str | None
    client_id: str
    client_host: str
    metadata: bytes = b""
    assignment: bytes = b""


class Description(NamedTuple):
    error: ErrorCode
    state: str = ""
    protocol_type: str = ""
    protocol: str = ""
    members: tuple[DescribedMember, ...] = ()


class GroupCoordinator:
    def __init__(
        self,
        config: BrokerConfig,
        *,
        topic: InternalTopic,
        appends: Appends,
        replicas: ReplicaManager,
        random: Random,
        pool: Pool = at_once,
    ) -> None:
        """`pool` encodes the records of large commits."""
        self._config = config
        self._random = random
        self._replicas = replicas
        self.registry = GroupRegistry(topic, config.group_bytes_max)
        clock = replicas.clock
        group_log = GroupLog(config, clock, appends, replicas, pool)
        rules = Rules(config.group_initial_rebalance_delay_ms, config.group_max_size)
        guard = replicas.guard
        self.execution = Execution(self.registry, group_log, clock, guard, rules)
        self.commits = Commits(config, self.registry, group_log, self.execution, guard)
        buffer_bytes = config.offsets_load_buffer_size
        self.loading = GroupLoading(self.registry, group_log, self.execution, clock, guard, buffer_bytes)
        replicas.leadership_listeners[topic.name] = self.loading
        replicas.on_deleted = self.commits.partitions_deleted

    @asynccontextmanager
    async def running(self) -> AsyncIterator[GroupCoordinator]:
        """Inside `ReplicaManager.running`, whose guard runs the tasks."""
        self._replicas.guard.start("timer", "offset-expiry", self.commits.run_expiry)
        try:
            yield self
        finally:
            self.execution.timers.cancel_all()

    # --- membership ---

    def new_member_id(self, prefix: str) -> str:
        return f"{prefix}-{UUID(int=self._random.getrandbits(128), version=4)}"

    async def join(self, group_id: str, request: Join, client: ClientConnection | None = None) -> JoinAnswer:
        try:
            group = self._group_to_join(group_id, request)
        except KafkaError as error:
            return JoinAnswer(error.code, request.member_id)
        call, turn = self.execution.call(), self.execution.turn()
        joins.join(group, request, call, self.execution.rules, turn)
        self.execution.carry_out(group, turn)
        self.commits.forget_if_void(group)
        answer: JoinAnswer = await self.execution.answer(call, client)
        return answer

    def _group_to_join(self, group_id: str, request: Join) -> Group:
        self.registry.check(group_id)
        shortest, longest = self._config.group_min_session_timeout_ms, self._config.group_max_session_timeout_ms
        if not shortest <= request.session_timeout_ms <= longest:
            raise KafkaError(ErrorCode.INVALID_SESSION_TIMEOUT)
        if not joins.is_reasonable(request, self._config.group_member_bytes_max):
            self.registry.refused += 1
            raise KafkaError(ErrorCode.POLICY_VIOLATION)
        group = self.registry.get(group_id)
        if group is None and request.member_id != NO_MEMBER:
            raise KafkaError(ErrorCode.UNKNOWN_MEMBER_ID)
        if not self.registry.has_room(joins.growth(group, request)):
            self.registry.refused += 1
            raise KafkaError(ErrorCode.GROUP_MAX_SIZE_REACHED)
        return self.registry.create(group_id) if group is None else group

    async def sync(self, group_id: str, request: Sync, client: ClientConnection | None = None) -> SyncAnswer:
        try:
            self.registry.check(group_id)
        except KafkaError as error:
            # Clients do not expect to hear of a load here. They join again, and hear of it then.
            is_loading = error.code is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
            return SyncAnswer(ErrorCode.REBALANCE_IN_PROGRESS if is_loading else error.code)
        group = self.registry.get(group_id)
        if group is None:
            return SyncAnswer(ErrorCode.UNKNOWN_MEMBER_ID)
        call, turn = self.execution.call(), self.execution.turn()
        rebalance.sync(group, request, call, turn)
        self.execution.carry_out(group, turn)
        answer: SyncAnswer = await self.execution.answer(call, client)
        return answer

    def heartbeat(self, group_id: str, member_id: str, instance_id: str | None, generation: int) -> ErrorCode:
        try:
            self.registry.check(group_id)
        except KafkaError as error:
            # During the load sessions do not run, and clients do not expect to hear of it here.
            is_loading = error.code is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
            return ErrorCode.NONE if is_loading else error.code
        group = self.registry.get(group_id)
        if group is None:
            return ErrorCode.UNKNOWN_MEMBER_ID
        turn = self.execution.turn()
        error_code = rebalance.heartbeat(group, member_id, instance_id, generation, turn)
        self.execution.carry_out(group, turn)
        return error_code

    def leave(self, group_id: str, members: Sequence[LeavingMember]) -> list[ErrorCode]:
        """One answer for each member. Raises KafkaError of the whole request."""
        self.registry.check(group_id)
        group = self.registry.get(group_id)
        if group is None:
            return [ErrorCode.UNKNOWN_MEMBER_ID] * len(members)
        if group.is_in(State.DEAD):
            raise KafkaError(ErrorCode.COORDINATOR_NOT_AVAILABLE)
        errors = []
        for member in members:
            turn = self.execution.turn()
            errors.append(rebalance.leave(group, member, self.execution.rules, turn))
            self.execution.carry_out(group, turn)
        return errors

    # --- administration ---

    def describe(self, group_id: str) -> Description:
        try:
            self.registry.check(group_id, may_be_empty=True)
        except KafkaError as error:
            return Description(error.code)
        group = self.registry.get(group_id)
        if group is None:
            return Description(ErrorCode.NONE, State.DEAD.value)
        is_stable = group.is_in(State.STABLE)
        members = tuple(
            DescribedMember(
                member.id,
                member.instance_id,
                member.client_id,
                member.client_host,
                member.metadata(group.protocol) if is_stable else b"",
                member.assignment if is_stable else b"",
            )
            for member in group.members.values()
        )
        protocol = (group.protocol or "") if is_stable else ""
        return Description(ErrorCode.NONE, group.state.value, group.protocol_type or "", protocol, members)

    def list(self) -> tuple[ErrorCode, list[Group]]:
        """The groups that are known, also while others are being loaded."""
        error = ErrorCode.COORDINATOR_LOAD_IN_PROGRESS if self.registry.ownership.is_loading else ErrorCode.NONE
        return error, list(self.registry.groups.values())

    async def delete(self, group_id: str | None) -> ErrorCode:
        try:
            self.registry.check(group_id, may_be_empty=True)
        except KafkaError as error:
            return error.code
        group = self.registry.get(group_id or "")
        if group is None or group.is_in(State.DEAD):
            return ErrorCode.GROUP_ID_NOT_FOUND
        if not group.is_in(State.EMPTY):
            return ErrorCode.NON_EMPTY_GROUP
        return await self.commits.delete_group(group)
