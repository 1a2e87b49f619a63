"""JSON schemas of the control requests and their responses, for kafka-python's codec."""
