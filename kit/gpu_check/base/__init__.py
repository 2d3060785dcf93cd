"""What each part of the check is given, and what it gives back."""
