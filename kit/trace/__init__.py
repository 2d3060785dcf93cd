"""Timelines and the numbers read off them: pure data and pure functions, numpy only."""

from kit.trace.metrics import CATEGORIES as CATEGORIES
from kit.trace.metrics import BreakdownRow as BreakdownRow
from kit.trace.metrics import Headline as Headline
from kit.trace.metrics import breakdown as breakdown
from kit.trace.metrics import breakdown_ns as breakdown_ns
from kit.trace.metrics import busy_fraction as busy_fraction
from kit.trace.metrics import headline as headline
from kit.trace.metrics import overlap_fraction as overlap_fraction
from kit.trace.metrics import union_ns as union_ns
from kit.trace.syncs import LIMITS as LIMITS
from kit.trace.syncs import Limit as Limit
from kit.trace.syncs import SyncRow as SyncRow
from kit.trace.syncs import idle_after as idle_after
from kit.trace.syncs import limited_by as limited_by
from kit.trace.syncs import sync_table as sync_table
from kit.trace.timeline import COLUMNS as COLUMNS
from kit.trace.timeline import KINDS as KINDS
from kit.trace.timeline import ORIGINS as ORIGINS
from kit.trace.timeline import Span as Span
from kit.trace.timeline import SyncPoint as SyncPoint
from kit.trace.timeline import Timeline as Timeline
