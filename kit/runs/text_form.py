"""Settings as one line of text to share: `bulk_forward=50&loss_scaling=dynamic,+on+device`.

Written like the query of a URL, so that it survives a chat, a shell in quotes and a link. What is
left out has kit's own default, also where the environment says another: the line means the same on
every machine.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from difflib import get_close_matches
from typing import Any
from urllib.parse import quote_plus, unquote_plus

from kit.errors import SettingsError
from kit.runs.knob import Knob

__all__ = ["no_such_setting", "read_text", "write_text"]

MAX_TEXT = 2000  # characters; all settings together need some 300
_EXAMPLE = "bulk_forward=50&batch_size=16"


def write_text(knobs: Sequence[Knob], values: Mapping[str, Any]) -> str:
    """What differs from kit's own defaults, in the order of the knobs; "" if nothing does."""
    return "&".join(
        f"{knob.name}={quote_plus(knob.write(values[knob.name]), safe=',')}"
        for knob in knobs
        if values[knob.name] != knob.default
    )


def read_text(knobs: Sequence[Knob], text: str) -> dict[str, Any]:
    """The values that a text names; whether they are possible is for `Settings` to say.

    Raises:
        SettingsError: the text is not of this form, or names a setting twice or one that is not.
    """
    if not isinstance(text, str):
        raise SettingsError(f"settings to read must be text, not {type(text).__name__}")
    if len(text) > MAX_TEXT:
        raise SettingsError(f"settings as text have at most {MAX_TEXT} characters, not {len(text)}")
    known = {knob.name: knob for knob in knobs}
    found: dict[str, Any] = {}
    for part in text.strip().removeprefix("?").split("&"):
        if not part.strip():
            continue  # an empty line is all defaults; a doubled & means nothing
        name, equals, raw = (x.strip() for x in part.partition("="))
        name, value = unquote_plus(name), unquote_plus(raw)
        if not equals:
            raise SettingsError(f"{part[:80]!r} is not of the form name=value, as in {_EXAMPLE}")
        if name not in known:
            raise no_such_setting(name, known)
        if name in found:
            raise SettingsError(f"{name} is there twice; leave one of the two out")
        # People type "a+b" as it is, where it is a value and "a b" is none.
        is_raw = raw in known[name].values and value not in known[name].values
        found[name] = known[name].read(raw if is_raw else value)
    return found


def no_such_setting(name: str, known: Iterable[str]) -> SettingsError:
    """The error for a name that no setting has: the one that was meant, or all that there are."""
    known = list(known)
    close = get_close_matches(name, known, n=1)
    hint = f"did you mean {close[0]!r}?" if close else f"there are: {', '.join(known)}"
    return SettingsError(f"no setting is called {name[:80]!r}; {hint}")
