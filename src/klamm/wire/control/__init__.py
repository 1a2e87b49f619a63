"""Control requests as bytes, both directions side by side: the controller encodes them, brokers decode and answer.

Three codecs share the work. `encoders` and `decoders` handle the versions that a controller sends today, by hand,
because a request may carry 100,000 partitions. `schema_requests` reads any version through the schemas in `schemas/`,
which klamm writes itself: kafka-python has none for these requests. `responses` holds the answers. The values that
these modules produce and take are in `klamm.model.control`.
"""
