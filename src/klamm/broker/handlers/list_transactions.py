"""ListTransactions (66): the transactional ids that this broker coordinates (KIP-664).

Any broker answers for its own share; a client asks all of them. Version 1 can ask for transactions that have been open
for longer than a duration.
"""

from __future__ import annotations

from typing import Any, Final

from klamm.broker.coordinators.transactions.transaction import NO_TIME, Transaction, TransactionState
from klamm.broker.handlers.services import Services
from klamm.broker.handlers.slices import each, in_slices
from klamm.model.errors import ErrorCode
from klamm.model.requests import RequestContext
from klamm.security.authorizer import Operation
from klamm.wire.apis import ApiKey
from klamm.wire.messages import response_class

_RESPONSE: Final = response_class(ApiKey.LIST_TRANSACTIONS)
_STATES: Final = {state.kafka_name: state for state in TransactionState}
_NEVER_STORED: Final = frozenset({"Dead", "PrepareEpochFence"})
"""States of Kafka that no id has here for longer than a moment: known, and always empty."""
VERSION_DURATION: Final = 1
IDS_PER_SLICE: Final = 1_000


async def handle(services: Services, context: RequestContext, version: int, request: Any) -> Any:
    if services.transactions.is_loading:
        return _RESPONSE(
            error_code=ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, unknown_state_filters=[], transaction_states=[]
        )
    names = each(request.state_filters, IDS_PER_SLICE)
    unknown = [name async for name in names if name not in _STATES and name not in _NEVER_STORED]
    wanted = {_STATES[name] for name in request.state_filters if name in _STATES}
    known = {transaction.producer_id for transaction in services.transactions.transactions()}
    producers = {
        wanted_id async for wanted_id in each(request.producer_id_filters, IDS_PER_SLICE) if wanted_id in known
    }
    duration_ms = request.duration_filter if version >= VERSION_DURATION else NO_TIME

    def fits(transaction: Transaction) -> bool:
        if request.state_filters and transaction.state not in wanted:
            return False
        if request.producer_id_filters and transaction.producer_id not in producers:
            return False
        if duration_ms < 0:
            return True
        is_open = transaction.state is TransactionState.ONGOING or transaction.state.is_prepared
        return is_open and services.replicas.clock.wall_ms() - transaction.start_ms > duration_ms

    def collect() -> Any:
        found = []
        for count, transaction in enumerate(services.transactions.transactions(), start=1):
            if fits(transaction) and services.may_transactional_id(
                context, Operation.DESCRIBE, transaction.transactional_id
            ):
                found.append(_state(transaction))
            if count % IDS_PER_SLICE == 0:
                yield
        return found

    return _RESPONSE(
        error_code=ErrorCode.NONE, unknown_state_filters=unknown, transaction_states=await in_slices(collect())
    )


def _state(transaction: Transaction) -> Any:
    return _RESPONSE.TransactionState(
        transactional_id=transaction.transactional_id,
        producer_id=transaction.producer_id,
        transaction_state=transaction.state.kafka_name,
    )
