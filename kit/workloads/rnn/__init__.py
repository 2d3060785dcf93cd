"""Recurrent layers whose gates are taken apart in several ways."""
