"""A client that writes one transaction after the other while brokers die, and knows what came of each."""

from __future__ import annotations

import threading
from collections.abc import Callable

from confluent_kafka import KafkaException, Producer

TRIES = 60


class TransactionWriter:
    """Transaction n writes n to every partition; each third one is aborted. Runs in a thread of its own."""

    def __init__(self, bootstrap: str, transactional_id: str, topic: str, partitions: int) -> None:
        self._settings = {
            "bootstrap.servers": bootstrap,
            "transactional.id": transactional_id,
            "linger.ms": 0,
            "transaction.timeout.ms": 60_000,
            "message.timeout.ms": 60_000,
        }
        self._topic = topic
        self._partitions = partitions
        self.committed: list[int] = []
        self.aborted: list[int] = []
        self.unknown: list[int] = []
        """The producer was fenced before it learned the outcome."""
        self.ending = threading.Event()
        """Set when the end of a transaction is about to be asked for."""
        self._stop = threading.Event()
        self._failure: list[BaseException] = []
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> TransactionWriter:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join(120)
        assert not self._thread.is_alive(), "a transaction hangs"
        if self._failure:
            raise self._failure[0]

    def wait_for_an_end(self) -> None:
        self.ending.clear()
        assert self.ending.wait(60) or self._failure, "no transaction ends"

    def _run(self) -> None:
        try:
            producer = self._start()
            number = 0
            while not self._stop.is_set():
                try:
                    self._write(producer, number)
                except KafkaException:
                    self.unknown.append(number)
                    producer = self._start()
                number += 1
        except BaseException as error:
            self._failure.append(error)

    def _start(self) -> Producer:
        producer = Producer(self._settings)
        again(lambda: producer.init_transactions(30))
        return producer

    def _write(self, producer: Producer, number: int) -> None:
        try:
            producer.begin_transaction()
            for partition in range(self._partitions):
                producer.produce(self._topic, str(number).encode(), partition=partition)
            producer.flush(60)
            self.ending.set()
            if number % 3 != 2:
                again(lambda: producer.commit_transaction(30))
                self.committed.append(number)
                return
        except KafkaException as error:
            if not error.args[0].txn_requires_abort():
                raise
        again(lambda: producer.abort_transaction(30))
        self.aborted.append(number)


def again(call: Callable[[], object]) -> None:
    """Call until it succeeds, as applications do with errors that the client calls retriable."""
    for _ in range(TRIES):
        try:
            call()
            return
        except KafkaException as error:
            if not error.args[0].retriable():
                raise
    raise AssertionError(f"still no success after {TRIES} tries")
