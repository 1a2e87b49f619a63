"""Control requests as bytes, in both directions: the controller encodes them, brokers decode and answer.

Three codecs share the work. `encoders` and `decoders` handle the versions that a controller sends today, by hand,
because a request may carry 100,000 partitions. `schema_requests` reads any version through the tables and gives them
one form. `responses` holds the answers. The decoded values are in `klamm.model.control`.
"""
