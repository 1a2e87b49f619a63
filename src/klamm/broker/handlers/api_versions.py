"""ApiVersions (18): what this broker serves. The one API that also answers a version that it does not know.

Unknown version: a v0 body with UNSUPPORTED_VERSION that names only ApiVersions itself, the request not even parsed; the
client takes its highest version from there (reference broker 5.3). v3 names the client's software; a name that is none
gets INVALID_REQUEST, in v3 form.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

from klamm.broker.handlers.services import Services
from klamm.model.errors import ErrorCode
from klamm.model.ports import Buffer
from klamm.model.requests import RequestContext
from klamm.wire.apis import APIS, Api, ApiKey
from klamm.wire.messages import decode_request, encode_response, response_class

_RESPONSE: Final = response_class(ApiKey.API_VERSIONS)
VERSION_SOFTWARE_NAME: Final = 3
_SOFTWARE: Final = re.compile(r"[a-zA-Z0-9](?:[a-zA-Z0-9\-.]*[a-zA-Z0-9])?")


def answer(
    services: Services, context: RequestContext, version: int, body: memoryview, served: Sequence[Api]
) -> Sequence[Buffer]:
    me = APIS[ApiKey.API_VERSIONS]
    if not me.serves(version):
        return _encode(0, ErrorCode.UNSUPPORTED_VERSION, [me], 0)
    if version >= VERSION_SOFTWARE_NAME:
        request = decode_request(ApiKey.API_VERSIONS, version, body)
        names = (request.client_software_name, request.client_software_version)
        if not all(_SOFTWARE.fullmatch(name) for name in names):
            return _encode(version, ErrorCode.INVALID_REQUEST, [], 0)
    return _encode(version, ErrorCode.NONE, served, services.quotas.throttle(context, "ApiVersions", 0))


def _encode(version: int, error: ErrorCode, served: Sequence[Api], throttle_ms: int) -> Sequence[Buffer]:
    keys = [
        _RESPONSE.ApiVersion(api_key=api.key, min_version=api.min_version, max_version=api.max_version)
        for api in served
    ]
    return [encode_response(_RESPONSE(error_code=error, api_keys=keys, throttle_time_ms=throttle_ms), version)]
