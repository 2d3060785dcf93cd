"""The widget that runs a step again when a control moves."""
