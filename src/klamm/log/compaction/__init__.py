"""The log cleaner: which log is due, which records survive, and how cleaned segments replace their sources."""
