"""The spool's room: whose reports are read on.

A job may hold as much of the spool as is left free, and the jobs of one owner together twice as much. So whatever some of them tell, there is room for
others: one alone gets half, two of an owner a third each, and of any number of one owner's a third of all stays free.
"""

from muster_exporter.store import Store


class Room:
    """As it is now."""

    def __init__(self, store: Store, spool_bytes: int):
        self._by_job = store.bytes_by_job()
        self._by_owner: dict[str, int] = {}
        self._all = spool_bytes
        self.free = spool_bytes - store.bytes()
        for uid, about, _ in store.unfinished():
            owner = about["owner"]
            self._by_owner[owner] = self._by_owner.get(owner, 0) + self._by_job.get(uid, 0)

    def has(self, uid: str, about: dict) -> bool:
        """For more reports of that job."""
        mine, owners = self._by_job.get(uid, 0), self._by_owner.get(about["owner"], 0)
        return self.free > 0 and mine <= self.free and owners <= 2 * self.free

    def never_has(self, uid: str) -> bool:
        """Not even if it were alone."""
        return 2 * self._by_job.get(uid, 0) > self._all
