"""Regard inside other libraries. Each module is imported when it is used, and needs its library."""
