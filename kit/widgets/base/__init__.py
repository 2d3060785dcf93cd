"""What every view is made of: page, theme, tables, lists, selection, controls, progress."""
