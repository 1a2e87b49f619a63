"""What the controller is doing, in the terms of Kafka's ControllerState."""

from __future__ import annotations

from enum import IntEnum


class ControllerState(IntEnum):
    """Each value is reported by the gauge ControllerState and measured by the timer of its name."""

    IDLE = 0
    CONTROLLER_CHANGE = 1
    BROKER_CHANGE = 2
    TOPIC_CHANGE = 3
    TOPIC_DELETION = 4
    PARTITION_REASSIGNMENT = 5
    AUTO_LEADER_BALANCE = 6
    MANUAL_LEADER_BALANCE = 7
    CONTROLLED_SHUTDOWN = 8
    ISR_CHANGE = 9
    LEADER_AND_ISR_RESPONSE = 10
    LOG_DIR_CHANGE = 11
    CONTROLLER_SHUTDOWN = 12
    UNCLEAN_LEADER_ELECTION_ENABLE = 13
    TOPIC_UNCLEAN_LEADER_ELECTION_ENABLE = 14
    LIST_PARTITION_REASSIGNMENT = 15
    UPDATE_METADATA_RESPONSE = 16


TIMER_NAMES = {
    ControllerState.CONTROLLER_CHANGE: "ControllerChangeRateAndTimeMs",
    ControllerState.BROKER_CHANGE: "LeaderElectionRateAndTimeMs",
    ControllerState.TOPIC_CHANGE: "TopicChangeRateAndTimeMs",
    ControllerState.TOPIC_DELETION: "TopicDeletionRateAndTimeMs",
    ControllerState.PARTITION_REASSIGNMENT: "PartitionReassignmentRateAndTimeMs",
    ControllerState.AUTO_LEADER_BALANCE: "AutoLeaderBalanceRateAndTimeMs",
    ControllerState.MANUAL_LEADER_BALANCE: "ManualLeaderBalanceRateAndTimeMs",
    ControllerState.CONTROLLED_SHUTDOWN: "ControlledShutdownRateAndTimeMs",
    ControllerState.ISR_CHANGE: "IsrChangeRateAndTimeMs",
    ControllerState.LEADER_AND_ISR_RESPONSE: "LeaderAndIsrResponseReceivedRateAndTimeMs",
    ControllerState.LOG_DIR_CHANGE: "LogDirChangeRateAndTimeMs",
    ControllerState.CONTROLLER_SHUTDOWN: "ControllerShutdownRateAndTimeMs",
    ControllerState.UNCLEAN_LEADER_ELECTION_ENABLE: "UncleanLeaderElectionEnableRateAndTimeMs",
    ControllerState.TOPIC_UNCLEAN_LEADER_ELECTION_ENABLE: "TopicUncleanLeaderElectionEnableRateAndTimeMs",
    ControllerState.LIST_PARTITION_REASSIGNMENT: "ListPartitionReassignmentRateAndTimeMs",
}
"""Kafka's names; Idle and answers to UpdateMetadata have none. Dashboards also read timers that none of our events
updates; those stay at zero."""
