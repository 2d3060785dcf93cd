"""A run as tables: their columns, questions to them in SQL, frames of pandas."""
