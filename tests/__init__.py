"""A package, so that `from tests.factories import make_run` finds ours and no other `tests`."""
