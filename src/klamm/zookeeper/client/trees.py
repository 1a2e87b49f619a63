"""Deletes a whole tree of nodes in bulk, children first, and starts again if another client changes it."""

from __future__ import annotations

from typing import Final

from klamm.model.errors import NoNode, NotEmpty, RuntimeInconsistency, ZooKeeperError
from klamm.model.ports import Delete, ZooKeeper
from klamm.zookeeper.retries import until_connected

_CHANGED_MEANWHILE: Final = (NoNode, NotEmpty, RuntimeInconsistency)


async def delete_tree(zookeeper: ZooKeeper, path: str) -> bool:
    """Returns whether there was anything to delete. Raises the error of a node that it cannot delete, e.g. NoAuth."""
    found = False

    async def delete_all() -> bool:
        """May be repeated after a lost answer, since it looks at what is left before each write."""
        nonlocal found
        while True:
            paths = await paths_below(zookeeper, path)
            if not paths:
                return found
            found = True
            for result in await zookeeper.write_many([Delete(each) for each in reversed(paths)]):
                if isinstance(result, ZooKeeperError) and not isinstance(result, _CHANGED_MEANWHILE):
                    raise result

    return await until_connected(delete_all, pause_s=0)


async def paths_below(zookeeper: ZooKeeper, root: str) -> list[str]:
    """The node and all nodes below it, parents first. Empty if the node does not exist."""
    found: list[str] = []
    layer = [root]
    while layer:
        listings = await zookeeper.children_many(layer)
        found += [path for path, names in zip(layer, listings, strict=True) if names is not None]
        layer = [
            f"{path.rstrip('/')}/{name}" for path, names in zip(layer, listings, strict=True) for name in names or ()
        ]
    return found
