"""Elects the leader by one row with holder, epoch and expiry; the row also fences writes.

The scheduler that holds the unexpired row leads. Each takeover raises the epoch. Each writing
transaction of the leader first updates the row, on condition that the row still has the leader's
epoch. Before a takeover, this update locks the row, so a takeover waits for the commit. After a
takeover, the update finds no row, so the transaction is rolled back. Therefore a scheduler that has
lost the lead writes nothing, even if it was stopped and continued, or has a wrong clock.
"""

from __future__ import annotations

import logging
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace

from sqlalchemy import ColumnElement, Connection, or_, select, text, update
from sqlalchemy.exc import SQLAlchemyError

from server.core.context import Context
from server.core.database.engine import Database, LeadLostError, database_time, reading
from server.core.database.tables import leaders
from server.core.database.upsert import insert_absent

logger = logging.getLogger(__name__)

NAME = "scheduler"
"""Key of the row that names the leader."""
LEASE_SECONDS = 3.0
"""Lifetime of the lead without a renewal, in seconds. If the leader dies or stops, a takeover
follows within 5 s."""
RENEW_SECONDS = 0.75
"""Pause between two renewals, in seconds. Each renewal is a write. The lead survives three failed
renewals in a row."""
RENEWALS = 40
"""Maximum number of renewals between two rounds or writes. A scheduler that hangs loses the lead
after these 30 s."""
SEEN_SECONDS = 1.0
"""Maximum pause between two reads by a standby, in seconds. After a longer pause, the database was
probably unreachable for the leader, too. The duration of a read does not count, because otherwise a
slow database would prevent every takeover."""
SETTLE_SECONDS = 1.5
"""Additional wait of a standby, in seconds, after its reads paused for more than `SEEN_SECONDS`.
During this wait, a living leader can renew its lead."""
IDLE_SECONDS = 2.0
"""Time, in seconds, after which PostgreSQL ends a session that is idle inside a transaction of the
leader. Otherwise a stopped process would keep its locks, including the lock on the lead's row.
"""


class Leader:
    """This process as a candidate in the election, and as the leader.

    The rounds run in one thread. Another thread renews the lead, because a round may take longer
    than a lease.
    """

    def __init__(
        self, database: Database, *, monotonic: Callable[[], float] = time.monotonic
    ) -> None:
        self._database = database
        self._monotonic = monotonic
        self._holder = f"{socket.gethostname()[:200]}:{os.getpid()}:{os.urandom(4).hex()}"
        self._epoch: int | None = None
        self._works = threading.Event()  # set by each round and write
        self._seen_at: float | None = None
        self._settled_at = 0.0
        self._awaited: int | None = None

    def held(self) -> int | None:
        """Take the lead if it is free; return the epoch in which this process leads, or None.

        After a loss of the lead, the old epoch is returned until a renewal or a write detects the
        loss.
        """
        self._works.set()
        if self._epoch is None and self._is_free():
            self._take()
        return self._epoch

    def lose(self, epoch: int) -> None:
        """Stand by, because another scheduler took the lead after this epoch."""
        if self._epoch == epoch:
            logger.warning("the lead of epoch %d was taken over; this scheduler stands by", epoch)
            self._epoch = None

    def hold(self, connection: Connection, epoch: int) -> None:
        """Renew the lead, and block a takeover until the transaction ends.

        Raises:
            LeadLostError: another process has taken the lead since this epoch.
        """
        self._extend(connection, epoch)
        self._works.set()

    @contextmanager
    def renewed(self) -> Iterator[None]:
        """Renew the lead while the block runs, then release it."""
        stop = threading.Event()
        thread = threading.Thread(target=self._renew, args=(stop,), name="lead", daemon=True)
        thread.start()
        try:
            yield
        finally:
            stop.set()
            thread.join(timeout=LEASE_SECONDS)  # the database may hang, and must not delay the exit
            self.release()

    def release(self) -> None:
        """Release the lead, so that another scheduler can take it immediately."""
        epoch, self._epoch = self._epoch, None
        if epoch is None:
            return
        try:
            with _transaction(self._database) as connection:
                free = update(leaders).where(self._is_mine(epoch))
                connection.execute(free.values(holder=None, expires_at=None))
        except SQLAlchemyError:
            logger.warning("the lead was not given back; it expires", exc_info=True)

    def _is_mine(self, epoch: int) -> ColumnElement[bool]:
        row = leaders.c
        return (row.name == NAME) & (row.holder == self._holder) & (row.epoch == epoch)

    def _extend(self, connection: Connection, epoch: int) -> None:
        expires_at = database_time(connection, plus=LEASE_SECONDS)
        extended = update(leaders).where(self._is_mine(epoch)).values(expires_at=expires_at)
        if connection.execute(extended).rowcount == 0:
            raise LeadLostError(f"the lead of epoch {epoch} is lost")

    def _is_free(self) -> bool:
        """Return whether the row shows that no scheduler leads."""
        began = self._monotonic()
        with self._database.read() as connection:
            columns = (leaders.c.holder, leaders.c.epoch, _expired(connection).label("expired"))
            lead = select(*columns).where(leaders.c.name == NAME)
            row = connection.execute(lead).one_or_none()
        now = self._monotonic()
        if self._seen_at is not None and began - self._seen_at > SEEN_SECONDS:
            self._settled_at = now + SETTLE_SECONDS
        self._seen_at = now
        if row is None or row.holder is None:
            return True
        if self._awaited != row.epoch:
            self._awaited = row.epoch
            logger.info("%s leads in epoch %d; this scheduler stands by", row.holder, row.epoch)
        return bool(row.expired) and now >= self._settled_at

    def _take(self) -> None:
        with _transaction(self._database) as connection:
            insert_absent(connection, leaders, [{"name": NAME, "epoch": 0}])
            free = or_(leaders.c.holder.is_(None), _expired(connection))
            until = database_time(connection, plus=LEASE_SECONDS)
            taken = update(leaders).where(leaders.c.name == NAME, free)
            taken = taken.values(holder=self._holder, epoch=leaders.c.epoch + 1, expires_at=until)
            epoch = connection.scalar(taken.returning(leaders.c.epoch))
        if epoch is not None:
            logger.info("this scheduler leads, in epoch %d", epoch)
            self._epoch = epoch

    def _renew(self, stop: threading.Event) -> None:
        """Renew the lead until `stop` is set, at most `RENEWALS` times without a round or a write.

        A failed renewal does not end the loop, because no other scheduler can take the lead while
        the database is unreachable.
        """
        left, failed = RENEWALS, False
        while not stop.wait(RENEW_SECONDS):
            if self._works.is_set():
                self._works.clear()
                left = RENEWALS
            epoch = self._epoch
            if epoch is None or left == 0:
                continue
            try:
                with _transaction(self._database) as connection:
                    self._extend(connection, epoch)
                left, failed = left - 1, False
                if left == 0 and not self._works.is_set():
                    logger.error("the round hangs; the lead of epoch %d expires", epoch)
            except LeadLostError:
                self.lose(epoch)
            except SQLAlchemyError as error:
                if not failed:
                    logger.warning("the lead of epoch %d was not renewed: %s", epoch, error)
                failed = True


class LeaderDatabase(Database):
    """The database for the leader of one epoch, which refuses every write after a takeover."""

    def __init__(self, database: Database, leader: Leader, epoch: int) -> None:
        self.engine = database.engine
        self._reading = reading(database.engine)
        self._plain = database
        self._leader = leader
        self._epoch = epoch

    @contextmanager
    def write(self) -> Iterator[Connection]:
        """Open a transaction of the leader.

        Raises:
            LeadLostError: another scheduler leads.
        """
        with _transaction(self._plain) as connection:
            self._leader.hold(connection, self._epoch)
            yield connection


def leading(context: Context, leader: Leader, epoch: int) -> Context:
    """Return a context in which all writes of a scheduler belong to one epoch."""
    return replace(context, database=LeaderDatabase(context.database, leader, epoch))


@contextmanager
def _transaction(database: Database) -> Iterator[Connection]:
    """Open a transaction of the leader; PostgreSQL ends the transaction of a stopped process.

    SQLite does not end such a transaction, which blocks the database until the stopped process
    continues or ends.
    """
    with database.write() as connection:
        if not database.is_sqlite:
            limit = f"SET LOCAL idle_in_transaction_session_timeout = '{IDLE_SECONDS:g}s'"
            connection.execute(text(limit))
        yield connection


def _expired(connection: Connection) -> ColumnElement[bool]:
    """Return the SQL condition that the lead has expired, by the database's clock.

    An expiry that is more than one lease ahead counts as expired, too. Such an expiry was written
    before the clock was set back.
    """
    return or_(
        leaders.c.expires_at <= database_time(connection),
        leaders.c.expires_at > database_time(connection, plus=LEASE_SECONDS),
    )
