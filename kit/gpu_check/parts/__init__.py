"""The parts of the check: each is one function `run(journal)`, run in a process of its own."""
