"""A whole tree of nodes removed in bulk, children first. Looked at again when somebody else was at it meanwhile."""

from __future__ import annotations

from typing import Final

from klamm.model.errors import ConnectionLoss, NoNode, NotEmpty, RuntimeInconsistency, ZooKeeperError
from klamm.model.ports import Delete, ZooKeeper

_CHANGED_MEANWHILE: Final = (NoNode, NotEmpty, RuntimeInconsistency)


async def delete_tree(zookeeper: ZooKeeper, path: str) -> bool:
    """False if there was nothing to delete. Raises what resists: a missing right, say."""
    found = False
    while True:
        try:
            paths = await _tree(zookeeper, path)
            if not paths:
                return found
            found = True
            results = await zookeeper.write_many([Delete(each) for each in reversed(paths)])
        except ConnectionLoss:
            continue  # the next look tells what was deleted
        for result in results:
            if isinstance(result, ZooKeeperError) and not isinstance(result, _CHANGED_MEANWHILE):
                raise result


async def _tree(zookeeper: ZooKeeper, root: str) -> list[str]:
    """The node and all below it, parents first; empty if it is not there."""
    found: list[str] = []
    layer = [root]
    while layer:
        listings = await zookeeper.children_many(layer)
        found += [path for path, names in zip(layer, listings, strict=True) if names is not None]
        layer = [
            f"{path.rstrip('/')}/{name}" for path, names in zip(layer, listings, strict=True) for name in names or ()
        ]
    return found
