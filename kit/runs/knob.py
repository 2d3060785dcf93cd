"""`Knob`: all that is known of one setting. Checks, text form, controls and tables follow from it.

A field of `Settings` is written as `batch_size: int = knob(8, "what it asks", ...)`. Whatever lists
settings reads `knobs_of(settings)`, so that a new setting is one row there.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, replace
from functools import cache
from typing import Any, Literal

from kit.errors import SettingsError
from kit.runs.bulk_sizes import UNLIMITED, check_bulk_size
from kit.text import check_whole_number

__all__ = ["Knob", "Widget", "knob", "knobs_of", "settings_table"]

Widget = Literal["", "buttons", "menu", "slider"]
UNLIMITED_WORD = "unlimited"


@dataclass(frozen=True, slots=True)
class Knob:
    """One setting: its values, what turning it asks, and how people see it.

    Attributes:
        default: kit's own, which the text form leaves out.
        asks: what one learns by turning it, for the table of settings.
        values: the words it may be; if there are none, it is a whole number.
        least: the least whole number.
        is_bulk_size: a number of ops a segment, which may be "unlimited".
        from_environment: gives the default on this machine, if variables can change it.
        widget: the explorer's control; "": the explorer has none.
        label: its name for people; the name itself, in words, if not given.
        offered: the numbers that a slider stops at; others are added when they are set.
        words: names for people of values that need one; where values are numbers, words for those
            that are no such number, in the text form, too: {-1: "steady"}.
        tips: what a value does, for a tooltip.
        phrase: how a value tells one run from another, with {} for it: "{} steps"; by default
            the label and the value.
        phrases: the same of single values that are said otherwise: {0: "no prefetch"}.
        modes: the run modes in which it has an effect; all, if none is named.
        one_device_only: values that several devices cannot take, because they take back or guess
            what other devices were sent.
        tried: what `kit.autotune` tries unasked.
        is_compiled: another value needs other programs.
        is_training: another value is another training, with other losses.
        is_measuring: how long and from which seed is measured, not what.
        name: of the field; `knobs_of` fills it in.
    """

    default: Any
    asks: str
    values: tuple[str, ...] = ()
    least: int = 1
    is_bulk_size: bool = False
    from_environment: Callable[[], Any] | None = None
    widget: Widget = ""
    label: str = ""
    offered: tuple[int, ...] = ()
    words: Mapping[Any, str] = field(default_factory=dict)
    tips: Mapping[str, str] = field(default_factory=dict)
    phrase: str = ""
    phrases: Mapping[Any, str] = field(default_factory=dict)
    modes: tuple[str, ...] = ()
    one_device_only: tuple[str, ...] = ()
    tried: tuple[Any, ...] = ()
    is_compiled: bool = False
    is_training: bool = False
    is_measuring: bool = False
    name: str = ""

    def check(self, value: Any) -> None:
        """Accept a value of this setting.

        Raises:
            SettingsError: it is none; the message gives the allowed ones.
        """
        if self.values:
            if value not in self.values:
                choices = ", ".join(repr(x) for x in self.values)
                raise SettingsError(f"{self.name} must be one of {choices}, not {value!r}.")
        elif type(value) is int and value in self._instead:
            return
        elif self.is_bulk_size:
            check_bulk_size(self.name, value)
        else:
            advice = f"Change it with settings.replace({self.name}=...)."
            check_whole_number(SettingsError, self.name, value, at_least=self.least, advice=advice)

    @property
    def _instead(self) -> Mapping[Any, str]:
        """The words that stand for a number."""
        return {} if self.values else self.words

    def write(self, value: Any) -> str:
        """A value as text, which `read` reads again."""
        if value in self._instead:
            return self._instead[value]
        return UNLIMITED_WORD if self.is_bulk_size and value == UNLIMITED else str(value)

    def read(self, text: str) -> Any:
        """The value that a text means; whether it is possible is for `check` to say.

        Raises:
            SettingsError: the text is not a number, and the setting is one.
        """
        if self.values:
            return text
        if self.is_bulk_size and text == UNLIMITED_WORD:
            return UNLIMITED
        for value, word in self._instead.items():
            if text == word:
                return value
        if text.isascii() and text.isdecimal():
            return int(text)
        words = [UNLIMITED_WORD] * self.is_bulk_size + list(self._instead.values())
        also = "".join(f" or {word!r}" for word in words)
        raise SettingsError(f"{self.name} must be a whole number{also}, not {text[:80]!r}")

    def shown(self, value: Any) -> str:
        """A value for people: `1,000`, `unlimited`, `torch (native)`."""
        if value in self._instead:
            return self._instead[value]
        if isinstance(value, int):
            return UNLIMITED_WORD if self.is_bulk_size and value >= UNLIMITED else f"{value:,}"
        return self.words.get(value, str(value))

    def in_words(self, value: Any) -> str:
        """A value as it tells one run from another: `batch size 8`, `no prefetch`, `float16`."""
        phrase = self.phrases.get(value) or self.phrase or f"{self.label} {{}}"
        return phrase.format(self.shown(value))

    def has_effect(self, mode: str) -> bool:
        """Whether turning it changes a run of this mode."""
        return not self.modes or mode in self.modes

    @property
    def range(self) -> str:
        """The possible values, in Markdown."""
        numbers = [f"{self.least} and up", *(f"`{word}`" for word in self._instead.values())]
        return ", ".join(f"`{x}`" for x in self.values) or ", ".join(numbers)


def knob(default: Any, asks: str, **more: Any) -> Any:
    """A field of a settings dataclass: its default, and its row of the table in its metadata."""
    row = Knob(default, asks, **more)
    if row.from_environment is not None:
        return field(default_factory=row.from_environment, metadata={"knob": row})
    return field(default=default, metadata={"knob": row})


def knobs_of(settings: Any) -> tuple[Knob, ...]:
    """The table of settings: a row for each field of a settings dataclass, or of a value of it."""
    return _rows(settings if isinstance(settings, type) else type(settings))


@cache
def _rows(cls: Any) -> tuple[Knob, ...]:
    rows = ((f.name, f.metadata["knob"]) for f in fields(cls))
    return tuple(
        replace(row, name=name, label=row.label or name.replace("_", " ")) for name, row in rows
    )


def settings_table(cls: Any) -> str:
    """The table of settings in Markdown, as the documentation has it."""
    lines = ["| setting | values | default | what it asks |", "| --- | --- | --- | --- |"]
    lines += [
        f"| `{row.name}` | {row.range} | {row.write(row.default)} | {row.asks} |"
        for row in knobs_of(cls)
    ]
    return "\n".join(lines)
