"""Creates jobs in a transaction of SQLAlchemy."""

import json
import os
from datetime import datetime, timedelta, timezone

from sqlalchemy import create_engine, text
from sqlalchemy.exc import DBAPIError
from sqlalchemy.orm import Session

INVOICE = text("""SELECT jobwire.create_job(type => 'send-invoice',
    payload => CAST(:payload AS json), process_instance => :instance,
    retries => 5, tenant => 'acme')""")
REMINDER = text("""SELECT jobwire.create_job(type => 'send-reminder',
    payload => CAST(:payload AS json), due_at => :due,
    retry_policy => 'exponential(1s, 2, 1h)', tenant => 'acme')""")
SYNC = text("""SELECT id, created FROM jobwire.create_unique_job(type => 'sync-customer',
    unique_key => :key, payload => CAST(:payload AS json), tenant => 'acme')""")


def place_order(session: Session, order: int, customer: int) -> None:
    session.execute(text("INSERT INTO orders (number) VALUES (:order)"), {"order": order})

    payload = json.dumps({"order": order})
    invoice = session.scalar(INVOICE, {"payload": payload, "instance": f"order-{order}"})
    print(f"order {order}: job {invoice}")

    due = datetime.now(timezone.utc) + timedelta(days=3)
    session.execute(REMINDER, {"payload": payload, "due": due})

    payload = json.dumps({"customer": customer})
    sync = session.execute(SYNC, {"key": f"customer-{customer}", "payload": payload}).one()
    print(f"customer {customer}: job {sync.id}, created: {sync.created}")


url = os.environ["DATABASE_URL"].replace("postgres://", "postgresql+psycopg://", 1)
engine = create_engine(url)

with Session(engine) as session, session.begin():
    place_order(session, 17, 4)

with Session(engine) as session:
    place_order(session, 18, 5)
    session.rollback()  # neither the order nor its jobs exist

with Session(engine) as session, session.begin():
    place_order(session, 19, 4)  # the job of customer 4 exists already

try:
    with Session(engine) as session, session.begin():
        session.execute(text("SELECT jobwire.create_job(type => 'send-invoice', retries => 0)"))
except DBAPIError as refused:
    cause = refused.orig
    print(f"SQLSTATE {cause.sqlstate}: {cause.diag.message_primary}")
