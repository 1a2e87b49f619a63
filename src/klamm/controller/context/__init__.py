"""What the controller knows: partitions in columns, replica states, and the tables of legal transitions."""
