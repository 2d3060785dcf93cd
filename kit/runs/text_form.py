"""Settings as one line of text to share: `bulk_forward=50&loss_scaling=dynamic,+on+device`.

Written like the query of a URL, so that it survives a chat, a shell in quotes and a link. What is
left out has kit's own default, also where the environment says another: the line means the same on
every machine.
"""

from __future__ import annotations

from collections.abc import Mapping
from difflib import get_close_matches
from typing import Any
from urllib.parse import quote_plus, unquote_plus

from kit.errors import SettingsError
from kit.runs.bulk_sizes import DEFAULT_BULK, UNLIMITED

__all__ = ["read_text", "write_text"]

MAX_TEXT = 2000  # characters; all settings together need some 300
_WORD = "unlimited"
_FIXED = {"bulk_forward": DEFAULT_BULK, "bulk_backward": DEFAULT_BULK, "bulk_inference": UNLIMITED}


def write_text(values: Mapping[str, Any], defaults: Mapping[str, Any]) -> str:
    """What differs from the defaults, in their order; "" if nothing does."""
    own = {**defaults, **_FIXED}
    return "&".join(
        f"{name}={_written(name, values[name])}" for name in defaults if values[name] != own[name]
    )


def read_text(text: str, defaults: Mapping[str, Any]) -> dict[str, Any]:
    """All values by name; whether they are possible is for `Settings` to say.

    Raises:
        SettingsError: the text is not of this form, or names a setting twice or one that is not.
    """
    if not isinstance(text, str):
        raise SettingsError(f"settings to read must be text, not {type(text).__name__}")
    if len(text) > MAX_TEXT:
        raise SettingsError(f"settings as text have at most {MAX_TEXT} characters, not {len(text)}")
    found: dict[str, Any] = {}
    for part in text.strip().removeprefix("?").split("&"):
        if not part.strip():
            continue  # an empty line is all defaults; a doubled & means nothing
        name, equals, value = (unquote_plus(x).strip() for x in part.partition("="))
        if not equals:
            raise SettingsError(f"{part[:80]!r} is not of the form name=value, as in {_EXAMPLE}")
        if name not in defaults:
            close = get_close_matches(name, defaults, n=1)
            hint = f"did you mean {close[0]!r}?" if close else f"there are: {', '.join(defaults)}"
            raise SettingsError(f"no setting is called {name[:80]!r}; {hint}")
        if name in found:
            raise SettingsError(f"{name} is there twice; leave one of the two out")
        found[name] = _read(name, value, defaults[name])
    return {**defaults, **_FIXED, **found}


_EXAMPLE = "bulk_forward=50&batch_size=16"


def _written(name: str, value: Any) -> str:
    if name.startswith("bulk_") and value == UNLIMITED:
        return _WORD
    return quote_plus(str(value), safe=",")


def _read(name: str, value: str, default: Any) -> Any:
    if isinstance(default, str):
        return value
    if name.startswith("bulk_") and value == _WORD:
        return UNLIMITED
    if value.isascii() and value.isdecimal():
        return int(value)
    also = f" or {_WORD!r}" if name.startswith("bulk_") else ""
    raise SettingsError(f"{name} must be a whole number{also}, not {value[:80]!r}")
