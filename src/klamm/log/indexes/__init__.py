"""The index files of a segment: offset index, time index, and transaction index."""
