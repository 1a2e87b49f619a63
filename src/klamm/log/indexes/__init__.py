"""The index files of a segment: by offset, by time, and of aborted transactions."""
