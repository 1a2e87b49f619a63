"""The controller: which broker it is (election), what it knows (context), what it decides, and how it acts on that."""
