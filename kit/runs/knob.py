"""`Knob`: all that is known of one setting. Checks, text form, controls and tables follow from it.

A field of `Settings` is written as `batch_size: int = setting(8, "what it asks", ...)`; a parameter
of a workload's builder is an `OwnKnob`. Whatever lists settings reads `knobs_of(settings)`, which
has a row for each of both, so that a new setting is one row there.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cache
from typing import Any, Literal

from kit.errors import SettingsError
from kit.runs.bulk_sizes import UNLIMITED, UNLIMITED_WORD, check_bulk_size, size_text
from kit.text import MOST_WHOLE, check_whole_number, markdown_table

__all__ = [
    "MOST_VALUES",
    "Knob",
    "OwnKnob",
    "Widget",
    "check_by_name",
    "knobs_in",
    "knobs_of",
    "setting",
    "settings_table",
]

Widget = Literal["", "box", "buttons", "menu", "slider"]
Value = bool | int | str | float
SWITCH = ("off", "on")  # false and true, as text
MOST_VALUES = 1000  # of one knob
_MOST_TEXT = 100  # characters of a value, a name, a label
_LISTED = 12  # values that an error lists one by one


@dataclass(frozen=True, slots=True)
class Knob:
    """One setting: its values, what turning it asks, and how people see it.

    Attributes:
        default: kit's own, which the text form leaves out.
        asks: what one learns by turning it, for the table of settings.
        values: what it may be; if there are none, it is a whole number. A setting of kit's own has
            words here, a builder's knob words, numbers, or false and true.
        least: the least whole number.
        most: the largest: what is more was not meant, and would run without end or out of memory.
        is_bulk_size: a number of ops a segment, which may be "unlimited".
        from_environment: gives the default on this machine, if variables can change it.
        widget: the explorer's control; "": the explorer has none.
        label: its name for people; the name itself, in words, if not given.
        offered: the numbers that a slider stops at; others are added when they are set.
        words: names for people of values that need one; where values are numbers, words for those
            that are no such number, in the text form, too: {-1: "steady"}.
        tips: what a value does, or costs, for a tooltip.
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
        is_modelled: `kit.predict` knows what another value does to a step; else it refuses.
        is_of_builders: a builder asks its context for it, and no other program knows of it.
        where: the builder that it is a parameter of, as an error names it: `mine (train.py:12)`;
            "" for kit's own settings.
        name: of the field; `knobs_of` fills it in.
    """

    default: Any
    asks: str
    values: tuple[Any, ...] = ()
    least: int = 1
    most: int = MOST_WHOLE
    is_bulk_size: bool = False
    from_environment: Callable[[], Any] | None = None
    widget: Widget = ""
    label: str = ""
    offered: tuple[Any, ...] = ()
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
    is_modelled: bool = False
    is_of_builders: bool = False
    where: str = ""
    name: str = ""

    def check(self, value: Any) -> None:
        """Accept a value of this setting.

        Raises:
            SettingsError: it is none; the message gives the allowed ones.
        """
        if self.values:
            if not any(type(x) is type(value) and x == value for x in self.values):
                raise SettingsError(self._refusal(repr(value)))
        elif type(value) is int and value in self._instead:
            return
        elif self.is_bulk_size:
            check_bulk_size(self.name, value)
        else:
            advice = f"Change it with settings.replace({self.name}=...)."
            ends = {"at_least": self.least, "at_most": self.most}
            check_whole_number(SettingsError, self.name, value, **ends, advice=advice)

    def _refusal(self, given: str) -> str:
        """What an error says of a value that is none of these."""
        place = f" of {self.where}" if self.where else ""
        return f"{self.name}{place} must be {self._choices()}, not {given:.80}."

    def _choices(self) -> str:
        """The possible values, as an error lists them: `64 to 512 in steps of 64`."""
        if len(self.values) == 1:
            return repr(self.values[0])
        first, second, last = self.values[0], self.values[1], self.values[-1]
        if self.is_number and len(self.values) > _LISTED and self.widget == "slider":
            return f"{self.write(first)} to {self.write(last)} in steps of {second - first:.9g}"
        return f"one of {', '.join(repr(x) for x in self.values)}"

    @property
    def is_own(self) -> bool:
        """It is a parameter of a workload's builder."""
        return bool(self.where)

    @property
    def is_number(self) -> bool:
        """Its values are numbers, which have an order."""
        return not any(isinstance(x, bool | str) for x in self.values)

    @property
    def _instead(self) -> Mapping[Any, str]:
        """The words that stand for a number."""
        return {} if self.values else self.words

    @property
    def numbers(self) -> dict[str, int]:
        """The numbers that words stand for, such as "unlimited", by the word."""
        unlimited = {UNLIMITED_WORD: UNLIMITED} if self.is_bulk_size else {}
        return unlimited | {word: value for value, word in self._instead.items()}

    def write(self, value: Any) -> str:
        """A value as text, which `read` reads again."""
        if value in self._instead:
            return self._instead[value]
        if isinstance(value, bool):
            return SWITCH[value]
        return UNLIMITED_WORD if self.is_bulk_size and value == UNLIMITED else str(value)

    def read(self, text: str) -> Any:
        """The value that a text means; whether a number is possible is for `check` to say.

        Raises:
            SettingsError: the text is none of the values, or not a number, and the setting is one.
        """
        if self.values:
            return self._chosen(text)
        if text in self.numbers:
            return self.numbers[text]
        if text.isascii() and text.isdecimal():
            return int(text)
        also = "".join(f" or {word!r}" for word in self.numbers)
        raise SettingsError(
            f"{self.name} must be a whole number of at least {self.least}{also}, not {text[:80]!r}"
        )

    def _chosen(self, text: str) -> Any:
        """The value among `values` that a text means: 0.10 is 0.1, and true is on."""
        for value in self.values:
            said = {self.write(value), str(value)}
            if text in said or (isinstance(value, bool) and text.lower() in map(str.lower, said)):
                return value
            if isinstance(value, float) and _is_number(text, value):
                return value
        raise SettingsError(self._refusal(repr(text)))

    def shown(self, value: Any) -> str:
        """A value for people: `1,000`, `unlimited`, `torch (native)`."""
        if value in self._instead:
            return self._instead[value]
        if isinstance(value, bool):
            return SWITCH[value]
        if isinstance(value, int):
            return size_text(value) if self.is_bulk_size else f"{value:,}"
        return self.words.get(value, str(value))

    def in_words(self, value: Any) -> str:
        """A value as it tells one run from another: `batch size 8`, `no prefetch`, `float16`."""
        phrase = self.phrases.get(value) or self.phrase
        shown = self.shown(value)
        return phrase.format(shown) if phrase else f"{self.label} {shown}"

    def has_effect(self, mode: str) -> bool:
        """Whether turning it changes a run of this mode."""
        return not self.modes or mode in self.modes

    @property
    def range(self) -> str:
        """The possible values, in Markdown."""
        up = "and up" if self.most == MOST_WHOLE else f"to {self.most:,}"
        numbers = [f"{self.least} {up}", *(f"`{word}`" for word in self._instead.values())]
        return ", ".join(f"`{x}`" for x in self.values) or ", ".join(numbers)


def _is_number(text: str, value: float) -> bool:
    try:
        return float(text) == value
    except ValueError:
        return False


@dataclass(frozen=True, slots=True)
class OwnKnob:
    """A parameter of a workload's builder, and its value in some settings; it is saved with a run.

    Two are equal if their names and values are: what a builder offers beside may change later.

    Raises:
        SettingsError: the value is none of the possible ones, or these cannot be.
    """

    name: str
    value: Value
    values: tuple[Value, ...] = field(compare=False, repr=False)
    default: Value = field(compare=False, repr=False)
    widget: str = field(default="menu", compare=False, repr=False)
    label: str = field(default="", compare=False, repr=False)
    asks: str = field(default="", compare=False, repr=False)
    changes_numbers: bool = field(default=True, compare=False, repr=False)
    where: str = field(default="", compare=False, repr=False)

    def __post_init__(self) -> None:
        texts = (self.name, self.label, self.asks, self.where, *self.values)
        if not (self.name.isidentifier() and self.name.isascii()):
            raise SettingsError(
                f"{self.name[:40]!r} cannot be a knob's name, which stands in addresses and on the "
                "command line: use the letters a to z, digits and _"
            )
        if len({type(x) for x in self.values}) != 1:
            raise SettingsError(f"{self.name[:40]!r}: the values of a knob must be of one type")
        if len(self.values) > MOST_VALUES or self.widget not in ("box", "menu", "slider"):
            raise SettingsError(
                f"{self.name[:40]!r} has more values than {MOST_VALUES}, or an unknown control"
            )
        if any(isinstance(x, str) and (len(x) > _MOST_TEXT or not x.isprintable()) for x in texts):
            raise SettingsError(
                f"the texts of {self.name[:40]!r} must be of one line, of {_MOST_TEXT} characters"
            )
        if any(isinstance(x, float) and not math.isfinite(x) for x in self.values):
            raise SettingsError(f"{self.name}: nan and inf are no values of a knob")
        if any(isinstance(x, int) and abs(x) > MOST_WHOLE for x in self.values):
            raise SettingsError(f"{self.name}: a knob's whole numbers are at most {MOST_WHOLE:,}")
        self.row.check(self.value)
        self.row.check(self.default)

    def set(self, value: Any) -> OwnKnob:
        """The same knob at another value; a whole number will do where fractions are possible."""
        is_fraction = isinstance(self.default, float) and type(value) is int
        return replace(self, value=float(value) if is_fraction else value)

    @property
    def row(self) -> Knob:
        """Its row of the table of settings: nothing is known of what it does to the programs."""
        return Knob(
            self.default,
            self.asks,
            values=self.values,
            widget=self.widget,  # type: ignore[arg-type]
            label=self.label or self.name.replace("_", " "),
            offered=self.values,
            tried=() if self.changes_numbers else self.values,
            is_compiled=True,
            is_training=self.changes_numbers,
            where=self.where or "its builder",
            name=self.name,
        )


def setting(default: Any, asks: str, **more: Any) -> Any:
    """A field of a settings dataclass: its default, and its row of the table in its metadata."""
    row = Knob(default, asks, **more)
    if row.from_environment is not None:
        return field(default_factory=row.from_environment, metadata={"knob": row})
    return field(default=default, metadata={"knob": row})


def knobs_of(settings: Any) -> tuple[Knob, ...]:
    """The table of settings: a row for each field of a settings dataclass, or of a value of it.

    A value has the rows of its builder's own knobs, too.
    """
    cls: Any = settings if isinstance(settings, type) else type(settings)
    own = () if cls is settings else settings.own
    return (*_rows(cls), *(knob.row for knob in own))


def knobs_in(many: Iterable[Any]) -> tuple[Knob, ...]:
    """The rows of several settings, each name once: those of other workloads have other knobs."""
    found = {row.name: row for settings in many for row in knobs_of(settings)}
    return tuple(found.values())


@cache
def _rows(cls: Any) -> tuple[Knob, ...]:
    rows = ((f.name, f.metadata["knob"]) for f in fields(cls) if "knob" in f.metadata)
    return tuple(
        replace(row, name=name, label=row.label or name.replace("_", " ")) for name, row in rows
    )


def check_by_name(given: object, what: str, example: Mapping[str, Sequence[Any]]) -> None:
    """Refuse what is no mapping of settings' names to values, such as a list of names.

    Raises:
        SettingsError: it is something else.
    """
    if not isinstance(given, Mapping):
        raise SettingsError(
            f"{what} is a list of values for each setting, as in {example}, not "
            f"{type(given).__name__}"
        )


def settings_table(cls: Any) -> str:
    """The table of settings in Markdown, as the documentation has it."""
    rows = ((f"`{row.name}`", row.range, row.write(row.default), row.asks) for row in knobs_of(cls))
    return markdown_table(("setting", "values", "default", "what it asks"), rows, has_numbers=False)
