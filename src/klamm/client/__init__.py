"""A Kafka client for klamm's own tools: the command line, the lake pipelines and the tests.

`cluster` finds brokers, negotiates versions and sends each request where it belongs; `admin`, `producer` and `reader`
speak the APIs on top of it; `blocking` runs them for code without an event loop. It works with klamm and with Apache
Kafka 2.4 to 3.9.
"""
