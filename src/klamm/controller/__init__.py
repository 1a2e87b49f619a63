"""The controller: who it is (election), what it knows (context), what it decides, and how that is carried out."""
