"""`Settings`: what to run. Each field is a row of the table of settings; see `kit.runs.knob`."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields, replace
from functools import wraps
from typing import TYPE_CHECKING, Any, Self, TypeVar

from kit.errors import SettingsError
from kit.runs.bulk_sizes import DEFAULT_BULK, UNLIMITED, BulkSizes, sizes_from_environment
from kit.runs.knob import OwnKnob, knobs_of, setting
from kit.runs.loss_scaling import LOSS_SCALING, NONE, LossScaling, loss_scaling
from kit.runs.steady import ENOUGH_S, LEAST_STEPS, MOST_STEPS
from kit.runs.text_form import no_such_setting, read_text, write_text

__all__ = [
    "BULK_STOPS",
    "CHECK_INDICES",
    "CHECK_NUMBERS",
    "DEVICES",
    "DTYPES",
    "ENOUGH",
    "GPUS",
    "KIT_MODES",
    "MODES",
    "SEGMENT_MODES",
    "STEP_MODES",
    "UNTIL_STEADY",
    "Settings",
    "check_names",
    "names_checked",
]

MODES = ("torch", "imperative", "bulked", "lazy")
KIT_MODES = MODES[1:]  # those that run in kit's runtime
SEGMENT_MODES = ("fuse", "launch")
STEP_MODES = ("retrace", "replay", "speculate")
DTYPES = ("float32", "bfloat16", "float16")
DEVICES = ("auto", "cpu", "gpu")
GPUS = ("gpu", "cuda", "rocm")  # what jax calls the platforms of "gpu"
CHECK_INDICES = ("on", "first steps", "off")
CHECK_NUMBERS = ("off", "on")
UNTIL_STEADY = -1  # as many warm-up steps as it takes
ENOUGH = -1  # as many measured steps as fill `ENOUGH_S`
_Class = TypeVar("_Class")
BULK_STOPS = (1, 2, 5, 10, 15, 20, 30, 50, 100, 200)  # and unlimited


def names_checked(cls: type[_Class]) -> type[_Class]:
    """A settings dataclass that answers a misspelt name; its signature is shown as ever.

    A notebook reads it from what is wrapped, an editor from the type that comes back.
    """
    make = cls.__init__

    @wraps(make)
    def __init__(self: Any, *values: Any, **named: Any) -> None:
        _check_known(named, [row.name for row in fields(type(self))])
        make(self, *values, **named)

    cls.__init__ = __init__  # type: ignore[method-assign]
    return cls


@names_checked
@dataclass(frozen=True)
class Settings:
    """One experiment's knobs; frozen, so vary it with `replace`.

    The parameters that a workload's builder gave to `kit.knob` are among them once the settings are
    a workload's, as those of `mine.settings(width=128)` and of a run are: `run.settings.width`.

    Raises:
        SettingsError: a name is no setting's, or a value is out of range; the message gives the
            nearest name, or the allowed values.
    """

    mode: str = setting(
        "bulked",
        "native PyTorch; an op at a time; in segments; whole steps",
        values=MODES,
        widget="buttons",
        label="run mode",
        words={"torch": "torch (native)"},
        tips={
            "torch": "PyTorch as it is, without the kit's runtime: the baseline",
            "imperative": "every op is its own segment (bulk size 1)",
            "bulked": "ops are cut into segments by the two bulk sizes",
            "lazy": "one segment until something waits (unlimited bulk size)",
        },
        phrase="{}",
        is_compiled=True,
        is_modelled=True,
    )
    bulk_forward: int = setting(
        DEFAULT_BULK,
        "how many ops one segment of the forward pass holds",
        is_bulk_size=True,
        from_environment=lambda: sizes_from_environment().forward,
        widget="slider",
        label="bulk size, forward",
        offered=BULK_STOPS,
        modes=("bulked",),
        is_compiled=True,
        is_modelled=True,
    )
    bulk_backward: int = setting(
        DEFAULT_BULK,
        "the same for the backward pass and the update",
        is_bulk_size=True,
        from_environment=lambda: sizes_from_environment().backward,
        widget="slider",
        label="bulk size, backward",
        offered=BULK_STOPS,
        modes=("bulked",),
        is_compiled=True,
        is_modelled=True,
    )
    segment_mode: str = setting(
        "fuse",
        "a segment as one XLA program, or op by op with one wait",
        values=SEGMENT_MODES,
        phrase="segments by {}",
        modes=KIT_MODES,
        tried=SEGMENT_MODES,
        is_compiled=True,
    )
    step_mode: str = setting(
        "retrace",
        "record every step; issue it again without its Python; or issue it while it is recorded",
        values=STEP_MODES,
        widget="menu",
        phrase="{}",
        modes=KIT_MODES,
        one_device_only=("speculate",),
        tried=STEP_MODES,
        is_modelled=True,
    )
    loss_scaling: str = setting(
        NONE,
        "what the check for infinities costs",
        values=LOSS_SCALING,
        widget="menu",
        tips={x: loss_scaling(x).costs for x in LOSS_SCALING},
        one_device_only=tuple(x for x in LOSS_SCALING if loss_scaling(x).takes_back),
        is_compiled=True,
        is_modelled=True,
        is_of_builders=True,
    )
    batch_size: int = setting(
        8,
        "when the device becomes the bottleneck",
        most=10**9,
        widget="slider",
        offered=(2, 4, 8, 16, 32),
        is_compiled=True,
        is_training=True,
        is_modelled=True,
        is_of_builders=True,
    )
    accumulate: int = setting(
        1,
        "how often the check for infinities is paid: micro-batches for one optimizer step",
        most=10**6,
        widget="slider",
        label="micro-batches a step",
        offered=(1, 2, 4, 8),
        phrase="{} micro-batches",
        phrases={1: "1 micro-batch"},
        is_compiled=True,
        is_training=True,
        is_modelled=True,
        is_of_builders=True,
    )
    prefetch: int = setting(
        0,
        "whether the step waits for its batches: how many a thread prepares ahead",
        least=0,
        most=1000,
        widget="slider",
        label="batches prefetched",
        offered=(0, 1, 2, 4, 8),
        phrase="prefetch {}",
        phrases={0: "no prefetch"},
        tried=(0, 2),
        is_modelled=True,
        is_of_builders=True,
    )
    dtype: str = setting(
        "float32",
        "what a lower precision of the autocast region saves",
        values=DTYPES,
        widget="menu",
        label="autocast dtype",
        phrase="{}",
        is_compiled=True,
        is_training=True,
        is_of_builders=True,
    )
    steps: int = setting(
        ENOUGH,
        f"how many steps are measured; by default enough to fill {ENOUGH_S:g} s, "
        f"{LEAST_STEPS} to {MOST_STEPS:,}",
        most=10**7,
        words={ENOUGH: "enough"},
        phrase="{} steps",
        phrases={ENOUGH: f"steps for {ENOUGH_S:g} s", 1: "1 step"},
        is_measuring=True,
    )
    warmup: int = setting(
        UNTIL_STEADY,
        "how many steps run before the measured ones; by default until they are steady",
        least=0,
        most=10**7,
        words={UNTIL_STEADY: "steady"},
        phrase="{} warm-up steps",
        phrases={UNTIL_STEADY: "warm-up until steady", 1: "1 warm-up step"},
        is_measuring=True,
    )
    seed: int = setting(
        0,
        "which random numbers are drawn; of a session, 0 is as torch was seeded",
        least=0,
        is_measuring=True,
    )
    device: str = setting(
        "auto", "where it runs; `auto`: on a GPU if there is one", values=DEVICES, is_compiled=True
    )
    bulk_inference: int = setting(
        UNLIMITED,
        "how many ops one segment of a forward pass without gradients holds; by default all",
        is_bulk_size=True,
        from_environment=lambda: sizes_from_environment().inference,
        label="bulk size, inference",
        phrase="bulk size {} in inference",
        modes=("bulked",),
        is_compiled=True,
        is_modelled=True,
    )

    check_indices: str = setting(
        "on",
        "whether an index or a label out of bounds is found on the device, which has no error",
        values=CHECK_INDICES,
        label="checks of indices",
        phrase="indices checked: {}",
        modes=KIT_MODES,
        is_compiled=True,
    )

    check_numbers: str | bool = setting(
        "off",
        "which op and line first made NaN or an infinity; every op is looked at, so a run is slow",
        values=CHECK_NUMBERS,
        label="checks of numbers",
        phrase="numbers checked: {}",
        modes=KIT_MODES,
        is_compiled=True,
    )

    own: tuple[OwnKnob, ...] = ()  # the knobs of the workload's builder; `fit` gives them

    def __post_init__(self) -> None:
        if isinstance(self.check_numbers, bool):  # a switch, so people write True
            object.__setattr__(self, "check_numbers", CHECK_NUMBERS[self.check_numbers])
        check_names(self.own, type(self))
        for row in knobs_of(self):
            value = getattr(self, row.name)
            if type(value) is str and value in row.numbers:  # as the settings' text has it
                object.__setattr__(self, row.name, value := row.numbers[value])
            row.check(value)

    if not TYPE_CHECKING:  # a type checker shall still find what is misspelt

        def __getattr__(self, name: str) -> Any:
            for knob in self.__dict__.get("own", ()):
                if knob.name == name:
                    return knob.value
            raise AttributeError(f"no setting is called {name!r}", name=name, obj=self)

    @classmethod
    def checked(cls, given: object) -> Settings:
        """The same settings; an error for what is none, such as a dict.

        Raises:
            SettingsError: it is something else.
        """
        if isinstance(given, Settings):
            return given
        raise SettingsError(
            "settings are a kit.Settings, as in kit.Settings(mode='lazy'), not "
            f"{type(given).__name__}"
        )

    @property
    def bulk_sizes(self) -> tuple[int, int]:
        """Effective (forward, backward) bulk sizes: the mode overrides the two numbers."""
        return self.bulk_in_force.forward, self.bulk_in_force.backward

    @property
    def bulk_in_force(self) -> BulkSizes:
        """All of the effective bulk sizes."""
        if self.mode == "imperative":
            return BulkSizes(1, 1, 1)
        if self.mode == "lazy":
            return BulkSizes(UNLIMITED, UNLIMITED, UNLIMITED)
        return BulkSizes(self.bulk_forward, self.bulk_backward, self.bulk_inference)

    @property
    def settling(self) -> int:
        """Steps after a pause that take what the loader's thread prepared in it.

        As many as are there, and as many again, because the loader goes on meanwhile.
        """
        return 2 * (self.prefetch + 1) if self.prefetch else 0

    @property
    def least_steps(self) -> int:
        """Measured steps that every run of these settings has; as many losses are kept."""
        return LEAST_STEPS if self.steps == ENOUGH else self.steps

    @property
    def scaling(self) -> LossScaling:
        """What is known of the chosen loss scaling."""
        return loss_scaling(self.loss_scaling)

    def replace(self, **changes: Any) -> Self:
        """A copy with some fields changed; an unknown name is an error."""
        _check_known(changes, sorted(row.name for row in knobs_of(self)))
        own = changes.pop("own", self.own)
        named = [knob.set(changes.pop(knob.name, knob.value)) for knob in own]
        return replace(self, **changes, own=tuple(named))

    def fit(self, own: Sequence[OwnKnob], name: str) -> Self:
        """These settings for a builder with these knobs; those that are set keep their value.

        Args:
            name: of the workload.

        Raises:
            SettingsError: a knob is set that this builder has not, or to a value it cannot have.
        """
        mine = {knob.name: knob.value for knob in self.own}
        if unknown := mine.keys() - {knob.name for knob in own}:
            has = ", ".join(knob.name for knob in own)
            one = sorted(unknown)[0]
            raise SettingsError(
                f"these settings have {one}={mine[one]!r}, a knob of another workload: {name!r} "
                f"has {f'the knobs {has}' if has else 'none of its own'}"
            )
        fitted = tuple(knob.set(mine.get(knob.name, knob.value)) for knob in own)
        return replace(self, own=fitted)

    def plain(self) -> Self:
        """Kit's own defaults, whatever the environment says, and those of the same builder."""
        own = tuple(knob.set(knob.default) for knob in self.own)
        cls = type(self)
        return cls(**{row.name: row.default for row in knobs_of(cls)}, own=own)

    def as_dict(self) -> dict[str, Any]:
        """Plain values by name, for files and tables."""
        return {row.name: getattr(self, row.name) for row in knobs_of(self)}

    def to_string(self) -> str:
        """What differs from kit's defaults as one line to share: `batch_size=16&dtype=float16`."""
        return write_text(knobs_of(self), self.as_dict())

    @classmethod
    def parse(cls, text: str, own: Sequence[OwnKnob] = ()) -> Self:
        """The settings that `to_string` wrote; what it leaves out has kit's own default.

        Args:
            own: the knobs of the workload's builder that the text may name, `mine.knobs`.

        Raises:
            SettingsError: the text is not of that form, or a name or a value is not possible.
        """
        plain = cls(own=tuple(own)).plain()
        return plain.replace(**read_text(knobs_of(plain), text))


def check_names(own: Sequence[OwnKnob], cls: type[Settings] = Settings) -> None:
    """Refuse a builder's knobs that have the name of a setting, or of each other.

    Raises:
        SettingsError: the message names it.
    """
    taken = {*dir(cls), *(f.name for f in fields(cls))}
    for knob in own:
        if knob.name in taken:
            raise SettingsError(
                f"no knob can be called {knob.name!r}{f' in {knob.where}' if knob.where else ''}: "
                "that is the name of a setting, or of another part of kit.Settings"
            )
        taken.add(knob.name)


def _check_known(given: Iterable[str], known: Iterable[str]) -> None:
    """Refuse a name that is no setting's; `own` is a field, and none that a person writes."""
    known = [name for name in known if name != "own"]
    for name in given:
        if name not in known and name != "own":
            raise no_such_setting(name, known)
