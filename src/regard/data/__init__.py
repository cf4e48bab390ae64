"""Data that models learn from: a user's own tables, and the generators of the small cases."""
