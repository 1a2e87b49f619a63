"""What the controller knows: partitions in columns, replica states, and the table of legal transitions."""
