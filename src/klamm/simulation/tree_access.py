"""Direct access to ZooKeeper's tree without a session: what the operator writes and what the simulation reads.

The operator uses no connection, because its failures would only obscure how the controllers react. Watches fire and the
checker is called as for any write.
"""

from __future__ import annotations

from collections.abc import Mapping

from klamm.model.errors import ZooKeeperError
from klamm.model.ports import OPEN_ACL, Acl
from klamm.zookeeper.jute import OpCode, Permission
from klamm.zookeeper.server.access import Caller, digest_identity
from klamm.zookeeper.server.rules import SEQUENTIAL, CreateNode, DeleteNode, Operation, SetAcl, SetData
from klamm.zookeeper.server.service import ZooKeeperService
from klamm.zookeeper.server.tree import TreeNode


class TreeAccess:
    def __init__(self, service: ZooKeeperService) -> None:
        self._service = service
        self._caller = Caller()
        self._caller.add_identity(digest_identity(b"operator:secret"))

    @property
    def nodes(self) -> Mapping[str, TreeNode]:
        return self._service.database.tree.nodes

    def read(self, path: str) -> bytes | None:
        node = self.nodes.get(path)
        return None if node is None else node.data

    def children(self, path: str) -> list[str]:
        node = self.nodes.get(path)
        return sorted(node.children or ()) if node is not None else []

    def put(self, path: str, data: bytes | None) -> None:
        """Create or overwrite, with missing parents."""
        if path in self.nodes:
            self._write(SetData(path, data, -1))
            return
        parent = path.rpartition("/")[0]
        if parent and parent not in self.nodes:
            self.put(parent, None)
        self._write(CreateNode(OpCode.CREATE, path, data, OPEN_ACL, 0))

    def put_sequential(self, prefix: str, data: bytes | None) -> None:
        parent = prefix.rpartition("/")[0]
        if parent not in self.nodes:
            self.put(parent, None)
        self._write(CreateNode(OpCode.CREATE, prefix, data, OPEN_ACL, SEQUENTIAL))

    def remove(self, path: str) -> None:
        """Remove a znode and everything below it, if it exists."""
        for child in self.children(path):
            self.remove(f"{path}/{child}")
        if path in self.nodes:
            self._write(DeleteNode(path, -1))

    def protect(self, path: str) -> None:
        """Only the operator may change the node and create or delete nodes below it; all may read it."""
        own = Acl(Permission.ALL, *digest_identity(b"operator:secret"))
        self._write(SetAcl(path, (Acl(Permission.READ, "world", "anyone"), own), -1))

    def unprotect(self, path: str) -> None:
        self._write(SetAcl(path, OPEN_ACL, -1))

    def _write(self, operation: Operation) -> None:
        try:
            self._service.database.write(operation, self._caller)
        except ZooKeeperError as error:
            raise AssertionError(f"{operation} of the simulation itself failed") from error
        self._service.flush()
