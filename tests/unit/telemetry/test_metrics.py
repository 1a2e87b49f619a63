from __future__ import annotations

from klamm.telemetry.metrics import MetricsRegistry
from klamm.telemetry.prometheus import exposition


def test_metrics_are_exported_under_kafkas_names() -> None:
    registry = MetricsRegistry()
    registry.gauge("kafka.controller", "KafkaController", "ActiveControllerCount").value = 1
    registry.meter("kafka.controller", "ControllerStats", "UncleanLeaderElectionsPerSec").mark(2)
    registry.timer("kafka.controller", "ControllerStats", "LeaderElectionRateAndTimeMs").update(12.5)
    registry.read("kafka.controller", "ControllerChannelManager", "QueueSize", lambda: 7, broker_id="3")
    text = exposition(registry).decode()
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
