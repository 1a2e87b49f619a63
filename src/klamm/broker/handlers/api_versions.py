"""ApiVersions (18): what this broker serves. The only API that also answers requests of an unknown version.

An unknown version is not even parsed. The answer has version 0's form, UNSUPPORTED_VERSION, and names only ApiVersions
itself, from which the client takes the highest version that it may use. Version 3 names the client's software
(KIP-511); a malformed name is answered with INVALID_REQUEST, in version 3's form.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, Final

from klamm.model.errors import ErrorCode
from klamm.wire.apis import APIS, Api, ApiKey
from klamm.wire.messages import decode_request, response_class

_RESPONSE: Final = response_class(ApiKey.API_VERSIONS)
VERSION_SOFTWARE_NAME: Final = 3
_SOFTWARE: Final = re.compile(r"[a-zA-Z0-9](?:[a-zA-Z0-9\-.]*[a-zA-Z0-9])?")


def answer(version: int, body: memoryview, served: Sequence[Api]) -> tuple[int, Any]:
    """The version to answer in, and the response."""
    me = APIS[ApiKey.API_VERSIONS]
    if not me.serves(version):
        return 0, _response(ErrorCode.UNSUPPORTED_VERSION, [me])
    if version >= VERSION_SOFTWARE_NAME:
        request = decode_request(ApiKey.API_VERSIONS, version, body)
        names = (request.client_software_name, request.client_software_version)
        if not all(_SOFTWARE.fullmatch(name) for name in names):
            return version, _response(ErrorCode.INVALID_REQUEST, [])
    return version, _response(ErrorCode.NONE, served)


def _response(error: ErrorCode, served: Sequence[Api]) -> Any:
    keys = [
        _RESPONSE.ApiVersion(api_key=api.key, min_version=api.min_version, max_version=api.max_version)
        for api in served
    ]
    return _RESPONSE(error_code=error, api_keys=keys)
