"""Stands in for the module `test.service` of kafka-python, which its source distribution leaves out.

The suite uses it to start brokers. With KAFKA_URI it starts none, and needs only these names.
"""


class ExternalService:
    def __init__(self, host: str, port: int) -> None:
        self.host = host
        self.port = port


class SpawnedService:
    pass
