"""Addresses in a configuration: they are logged, shown and stored, so credentials have no place in them."""

from __future__ import annotations

import re
from typing import Annotated
from urllib.parse import urlsplit

from pydantic import AfterValidator

# A secret key may hold a slash, after which a URL parser no longer looks for the `@`.
_USER = re.compile(r"^[A-Za-z][A-Za-z0-9+.-]*://(?:[^/?#\s]*@|[^/:@\s]*:[^@\s]*@)")
_SECRET = re.compile(r"[?&;][^=&#]*(?:password|passwd|pwd|secret|token|key|signature|credential)[^=&#]*=[^&#]", re.I)


def without_credentials(uri: str) -> str:
    """Return an address as it is.

    Raises:
        ValueError: it names a user or a secret, or is no address; the address is not repeated in the message.
    """
    if _USER.search(uri) or _SECRET.search(uri):
        raise ValueError("holds credentials; give them in environment variables instead")
    urlsplit(uri)
    return uri


Uri = Annotated[str, AfterValidator(without_credentials)]
