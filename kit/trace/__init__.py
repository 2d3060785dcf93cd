"""Timelines and the numbers read off them: pure data and pure functions, numpy only."""

from kit.trace.timeline import KINDS as KINDS
from kit.trace.timeline import ORIGINS as ORIGINS
from kit.trace.timeline import Span as Span
from kit.trace.timeline import SyncPoint as SyncPoint
from kit.trace.timeline import Timeline as Timeline
