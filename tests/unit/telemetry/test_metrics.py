from __future__ import annotations

from klamm.telemetry.metrics import MetricName, MetricsRegistry
from klamm.telemetry.prometheus import exposition
from klamm.wire.slices import finish


def test_metrics_are_exported_under_kafkas_names() -> None:
    registry = MetricsRegistry()
    registry.gauge("kafka.controller", "KafkaController", "ActiveControllerCount").value = 1
    registry.meter("kafka.controller", "ControllerStats", "UncleanLeaderElectionsPerSec").mark(2)
    registry.timer("kafka.controller", "ControllerStats", "LeaderElectionRateAndTimeMs").update(12.5)
    registry.read("kafka.controller", "ControllerChannelManager", "QueueSize", lambda: 7, broker_id="3")
    text = exposition(finish(registry.snapshot())).decode()
    assert "kafka_controller_kafkacontroller_activecontrollercount 1.0" in text
    assert "kafka_controller_controllerstats_uncleanleaderelections_total 2.0" in text
    assert "kafka_controller_controllerstats_leaderelectionrateandtimems_sum 12.5" in text
    assert 'kafka_controller_controllerchannelmanager_queuesize{broker_id="3"} 7.0' in text
    assert "kafka.controller:type=ControllerChannelManager,name=QueueSize,broker-id=3" in map(str, registry.names())


def test_a_removed_metric_is_gone() -> None:
    registry = MetricsRegistry()
    registry.gauge("kafka.server", "ReplicaManager", "LeaderCount").value = 4
    registry.remove("kafka.server", "ReplicaManager", "LeaderCount")
    assert registry.names() == []


def test_quantiles_are_those_of_the_samples() -> None:
    timer = MetricsRegistry().timer("g", "t", "n")
    for sample in range(1, 101):
        timer.update(sample)
    assert timer.quantiles()[0.5] == 51
    assert timer.quantiles()[0.99] == 100
    assert timer.max_ms == 100


def test_values_of_topics_are_read_at_the_scrape_and_the_total_has_no_label() -> None:
    registry = MetricsRegistry()
    topics = {"orders": 3.0}
    registry.read("kafka.server", "BrokerTopicMetrics", "MessagesInPerSec", lambda: 5)
    registry.read_many(
        lambda: [
            (MetricName("kafka.server", "BrokerTopicMetrics", "MessagesInPerSec", (("topic", topic),)), count)
            for topic, count in topics.items()
        ]
    )
    topics["bills"] = 2.0
    lines = exposition(finish(registry.snapshot())).decode().splitlines()
    name = "kafka_server_brokertopicmetrics_messagesin_total"
    assert [line for line in lines if not line.startswith("#")] == [
        f"{name} 5.0",
        f'{name}{{topic="bills"}} 2.0',
        f'{name}{{topic="orders"}} 3.0',
    ]
