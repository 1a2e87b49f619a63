"""The log cleaner: which log is due, what survives, and how the cleaned segments take their place."""
