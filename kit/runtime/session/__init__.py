"""The session: issues segments, waits, reports, and is the one owner of change."""
