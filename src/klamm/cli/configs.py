"""klamm configs: describe with the source of each value, set, unset, and differences between brokers.

A resource is a topic, one broker, all brokers, or the loggers of one broker, whose levels change while it runs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from klamm.admin.config_diff import differences
from klamm.admin.config_words import SOURCES, in_units
from klamm.cli import completion
from klamm.cli.client import connected
from klamm.cli.output import DEFAULT_BOOTSTRAP, Bootstrap, Json, key_values, print_json, print_table
from klamm.model.wording import count

if TYPE_CHECKING:
    from klamm.model.config_levels import ConfigEntry

configs_app = typer.Typer(
    help="Describe and change the settings of topics and brokers, and the levels of loggers.", no_args_is_help=True
)

TopicOption = Annotated[str | None, typer.Option("--topic", help="A topic.", autocompletion=completion.topics)]
BrokerOption = Annotated[
    int | None, typer.Option("--broker", min=0, help="One broker.", autocompletion=completion.brokers)
]
AllBrokers = Annotated[bool, typer.Option("--all-brokers", help="What is set for all brokers.")]
Loggers = Annotated[
    int | None, typer.Option("--loggers", min=0, help="Loggers of this broker.", autocompletion=completion.brokers)
]


class Resource(NamedTuple):
    kind: int
    name: str
    said: str


@configs_app.command()
def describe(
    topic: TopicOption = None,
    broker: BrokerOption = None,
    all_brokers: AllBrokers = False,
    loggers: Loggers = None,
    key: Annotated[list[str] | None, typer.Option(help="Only this key; may be repeated.")] = None,
    all_keys: Annotated[bool, typer.Option("--all", help="Also keys that have their default.")] = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    json: Json = False,
) -> None:
    """Show settings and where each value comes from. Without --all, only those that someone has set.

    Example: klamm configs describe --topic orders --all
    """
    resource = _resource(topic, broker, all_brokers, loggers)
    with connected(bootstrap) as client:
        found = client.run(client.admin.config_entries(resource.kind, resource.name, key))
    shown = [entry for _, entry in sorted(found.items()) if all_keys or key or entry.source.name != "BUILT_IN"]
    if json:
        print_json({"resource": resource.said, "settings": [_document(entry) for entry in shown]})
        return
    rows = [(entry.key, _shown(entry), SOURCES[entry.source.name]) for entry in shown]
    print_table(("KEY", "VALUE", "SOURCE"), rows, none=f"{resource.said} has nothing set; --all shows the defaults")


@configs_app.command("set")
def set_settings(
    settings: Annotated[list[str], typer.Argument(help="KEY=VALUE, one or more.")],
    topic: TopicOption = None,
    broker: BrokerOption = None,
    all_brokers: AllBrokers = False,
    loggers: Loggers = None,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    json: Json = False,
) -> None:
    """Change settings; other keys stay as they are. Brokers use the new values at once.

    Example: klamm configs set --loggers 1 klamm.controller=DEBUG
    """
    from klamm.client.admin import SET

    wanted = key_values(settings)
    resource = _resource(topic, broker, all_brokers, loggers)
    with connected(bootstrap) as client:
        changes = {key: (SET, value) for key, value in wanted.items()}
        client.run(client.admin.alter_configs(resource.kind, resource.name, changes))
    if json:
        print_json({"resource": resource.said, "set": wanted})
    else:
        typer.echo(f"set {', '.join(settings)} for {resource.said}")


@configs_app.command()
def unset(
    keys: Annotated[list[str], typer.Argument(help="Keys, one or more.")],
    topic: TopicOption = None,
    broker: BrokerOption = None,
    all_brokers: AllBrokers = False,
    loggers: Loggers = None,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    json: Json = False,
) -> None:
    """Remove settings, so that the next source counts: all brokers, the file, or the default.

    Example: klamm configs unset --topic orders retention.ms
    """
    from klamm.client.admin import DELETE

    resource = _resource(topic, broker, all_brokers, loggers)
    with connected(bootstrap) as client:
        changes: dict[str, tuple[int, str | None]] = dict.fromkeys(keys, (DELETE, None))
        client.run(client.admin.alter_configs(resource.kind, resource.name, changes))
    if json:
        print_json({"resource": resource.said, "unset": keys})
    else:
        typer.echo(f"unset {', '.join(keys)} for {resource.said}")


@configs_app.command()
def diff(
    with_own: Annotated[bool, typer.Option("--all", help="Also keys that must differ, such as log.dirs.")] = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    json: Json = False,
) -> None:
    """Show the settings in which brokers differ, and which broker has another value than most.

    Example: klamm configs diff
    """
    from klamm.client.admin import BROKER

    with connected(bootstrap) as client:
        brokers = sorted(client.run(client.admin.brokers()))
        settings = {each: client.run(client.admin.describe_configs(BROKER, str(each))) for each in brokers}
    found = differences(settings, with_own=with_own)
    if json:
        entries = [{"key": each.key, "values": each.values, "outliers": each.outliers()} for each in found]
        print_json({"brokers": brokers, "differences": entries})
        return
    if not found:
        typer.echo(f"{count(len(brokers), 'broker')} with the same settings")
        return
    columns = ("KEY", *(f"BROKER {broker}" for broker in brokers), "OUTLIERS")
    rows = [
        (each.key, *(_cell(each.values, broker) for broker in brokers), ",".join(map(str, each.outliers())))
        for each in found
    ]
    print_table(columns, rows)


def _resource(topic: str | None, broker: int | None, all_brokers: bool, loggers: int | None) -> Resource:
    from klamm.client.admin import BROKER, BROKER_LOGGER, TOPIC

    asked: list[Resource] = []
    if topic is not None:
        asked.append(Resource(TOPIC, topic, f"topic {topic}"))
    if broker is not None:
        asked.append(Resource(BROKER, str(broker), f"broker {broker}"))
    if all_brokers:
        asked.append(Resource(BROKER, "", "all brokers"))
    if loggers is not None:
        asked.append(Resource(BROKER_LOGGER, str(loggers), f"the loggers of broker {loggers}"))
    if len(asked) != 1:
        raise typer.BadParameter("use one of --topic, --broker, --all-brokers and --loggers")
    return asked[0]


def _document(entry: ConfigEntry) -> dict[str, Any]:
    return {
        "key": entry.key,
        "value": entry.value,
        "source": SOURCES[entry.source.name],
        "read_only": entry.read_only,
        "sensitive": entry.sensitive,
        "synonyms": [{"key": s.key, "value": s.value, "source": SOURCES[s.source.name]} for s in entry.synonyms],
    }


def _shown(entry: ConfigEntry) -> str:
    if entry.sensitive:
        return "(hidden)"
    if not entry.value:
        return '""' if entry.value == "" else "-"
    meaning = in_units(entry.key, entry.value)
    return f"{entry.value} ({meaning})" if meaning else entry.value


def _cell(values: dict[int, str | None], broker: int) -> str:
    return (values[broker] or "-") if broker in values else "(unknown key)"
