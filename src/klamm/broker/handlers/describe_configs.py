"""DescribeConfigs (32): every key of a topic, a broker or its loggers, with value, source and, if asked, synonyms.

Version 3 adds types and documentation (KIP-569). A null or empty list of keys means all, as in Kafka 3.
"""

from __future__ import annotations

from typing import Any, Final

from klamm.broker.handlers.config_resources import RESOURCES_PER_SLICE, checked, outcome
from klamm.broker.handlers.services import Services
from klamm.broker.handlers.slices import each
from klamm.model.config_levels import ConfigEntry, Source
from klamm.model.requests import RequestContext
from klamm.security.authorizer import Operation
from klamm.wire.apis import ApiKey
from klamm.wire.messages import response_class

_RESPONSE: Final = response_class(ApiKey.DESCRIBE_CONFIGS)
_RESULT: Final = _RESPONSE.DescribeConfigsResult
_ENTRY: Final = _RESULT.DescribeConfigsResourceResult
VERSION_SYNONYMS: Final = 1
VERSION_DOCUMENTATION: Final = 3


async def handle(services: Services, context: RequestContext, version: int, request: Any) -> Any:
    with_synonyms = version >= VERSION_SYNONYMS and request.include_synonyms
    with_documentation = version >= VERSION_DOCUMENTATION and request.include_documentation
    results = []
    # Each is described once, however often it is named: a description is a hundred times as long as a name.
    resources = {(named.resource_type, named.resource_name): named async for named in each(request.resources)}
    async for named in each(resources.values(), RESOURCES_PER_SLICE):
        entries: list[ConfigEntry] = []

        async def describe(named: Any = named, entries: list[ConfigEntry] = entries) -> None:
            kind, name = named.resource_type, named.resource_name
            resource = checked(services, context, Operation.DESCRIBE_CONFIGS, kind, name)
            wanted = set(named.configuration_keys or ())
            found = await services.configs.describe(resource)
            entries += [entry for entry in found if not wanted or entry.key in wanted]

        error = await outcome(describe)
        results.append(
            _RESULT(
                resource_type=named.resource_type,
                resource_name=named.resource_name,
                configs=[_entry(entry, with_synonyms, with_documentation) for entry in entries],
                **error,
            )
        )
    return _RESPONSE(results=results)


def _entry(entry: ConfigEntry, with_synonyms: bool, with_documentation: bool) -> Any:
    synonyms = entry.synonyms if with_synonyms else ()
    return _ENTRY(
        name=entry.key,
        value=entry.value,
        read_only=entry.read_only,
        is_default=entry.source is Source.BUILT_IN,
        config_source=entry.source,
        is_sensitive=entry.sensitive,
        synonyms=[
            _ENTRY.DescribeConfigsSynonym(name=key, value=value, source=source) for key, value, source in synonyms
        ],
        config_type=entry.type,
        documentation=entry.documentation if with_documentation else None,
    )
