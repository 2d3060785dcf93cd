"""Settings as a line of text: what is written is read again, and junk is a clear error."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kit.errors import SettingsError
from kit.runs.bulk_sizes import UNLIMITED
from kit.runs.knob import OwnKnob
from kit.runs.loss_scaling import LOSS_SCALING
from kit.runs.settings import (
    CHECK_INDICES,
    CHECK_NUMBERS,
    DEVICES,
    DTYPES,
    MODES,
    SEGMENT_MODES,
    STEP_MODES,
    Settings,
)

sizes = st.one_of(st.integers(1, 300), st.just(UNLIMITED), st.integers(1, 2**63 - 1))
counts = st.integers(1, 10**6)
some_settings = st.builds(
    Settings, mode=st.sampled_from(MODES), bulk_forward=sizes, bulk_backward=sizes,
    bulk_inference=sizes, segment_mode=st.sampled_from(SEGMENT_MODES),
    step_mode=st.sampled_from(STEP_MODES), loss_scaling=st.sampled_from(LOSS_SCALING),
    batch_size=counts, accumulate=counts, prefetch=st.integers(0, 99), steps=counts,
    dtype=st.sampled_from(DTYPES), warmup=st.integers(0, 9), seed=st.integers(0, 2**63 - 1),
    device=st.sampled_from(DEVICES), check_indices=st.sampled_from(CHECK_INDICES),
    check_numbers=st.sampled_from(CHECK_NUMBERS),
)  # fmt: skip


@given(some_settings)
def test_what_is_written_is_read_again_and_is_canonical(settings: Settings):
    text = settings.to_string()
    assert Settings.parse(text) == settings
    assert Settings.parse(text).to_string() == text
    assert text.isascii()
    assert not any(c.isspace() for c in text)


@given(st.text(max_size=200))
def test_junk_is_settings_or_a_settings_error(text: str):
    try:
        settings = Settings.parse(text)
    except SettingsError:
        return
    assert Settings.parse(settings.to_string()) == settings


def test_only_what_differs_from_the_defaults_is_written():
    assert Settings().to_string() == ""
    settings = Settings(bulk_forward=UNLIMITED, loss_scaling="dynamic, host check", batch_size=16)
    text = "bulk_forward=unlimited&loss_scaling=dynamic,+host+check&batch_size=16"
    assert settings.to_string() == text
    assert Settings.parse(f" ?{text}& ") == settings
    assert Settings.parse("loss_scaling=dynamic%2C%20on%20device").loss_scaling == LOSS_SCALING[3]


def test_a_text_of_a_builder_keeps_the_spaces_around_it():
    knob = OwnKnob("mark", " a", (" a", "a"), "a")
    text = Settings(own=(knob,)).to_string()
    assert Settings.parse(f" {text.replace('=', ' = ')} ", (knob.set("a"),)).mark == " a"


def test_a_value_may_be_typed_as_it_is():
    def knob(*values: str) -> OwnKnob:
        return OwnKnob("act", values[0], values, values[0], where="mine (train.py:1)")

    assert Settings.parse("act=a+b", [knob("relu", "a+b")]).act == "a+b"
    assert Settings.parse("act=a+b", [knob("relu", "a+b", "a b")]).act == "a b"
    settings = Settings(own=(knob("relu", "a+b").set("a+b"),))
    assert Settings.parse(settings.to_string(), settings.own) == settings


def test_the_line_means_the_same_whatever_the_environment_says(monkeypatch: pytest.MonkeyPatch):
    settings = Settings(bulk_forward=50)
    text = settings.to_string()
    monkeypatch.setenv("KIT_BULK_MAX_NODE_TRAIN", "7")
    assert Settings.parse(text) == settings
    assert Settings(bulk_forward=50).to_string() == "bulk_forward=50&bulk_backward=7"


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("bulk_foward=5", "no setting is called 'bulk_foward'; did you mean 'bulk_forward'?"),
        ("x=5", "no setting is called 'x'; there are: mode, bulk_forward"),
        ("bulk_forward", "'bulk_forward' is not of the form name=value"),
        ("batch_size=8&batch_size=9", "batch_size is there twice"),
        ("batch_size=many", "batch_size must be a whole number of at least 1, not 'many'"),
        (
            "bulk_forward=-1",
            "bulk_forward must be a whole number of at least 1 or 'unlimited', not '-1'",
        ),
        ("batch_size=", "batch_size must be a whole number of at least 1, not ''"),
        ("batch_size=٣", "batch_size must be a whole number"),
        ("batch_size=0", "batch_size must be a whole number of at least 1"),
        ("mode=eager", "mode must be one of 'torch', 'imperative', 'bulked', 'lazy', not 'eager'"),
        ("mode=torch&" * 500, "at most 2000 characters"),
    ],
)
def test_an_error_says_what_is_wrong(text: str, sentence: str):
    with pytest.raises(SettingsError) as caught:
        Settings.parse(text)
    assert sentence in str(caught.value)


def test_what_is_no_text_is_refused():
    with pytest.raises(SettingsError, match="must be text, not dict"):
        Settings.parse({"batch_size": 8})  # type: ignore[arg-type]
