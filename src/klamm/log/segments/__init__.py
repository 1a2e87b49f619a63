"""The segments of a log: their files, when a new one begins, which old ones go, and searches over them."""
