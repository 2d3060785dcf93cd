"""`kit run`: scripts of users, measured by their step or watched as they are."""
