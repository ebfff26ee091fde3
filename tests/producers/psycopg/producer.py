"""Creates jobs in a transaction of psycopg."""

import os
from datetime import datetime, timedelta, timezone

import psycopg
from psycopg.types.json import Json

INVOICE = """SELECT jobwire.create_job(type => 'send-invoice', payload => %s,
    process_instance => %s, retries => 5, tenant => 'acme')"""
REMINDER = """SELECT jobwire.create_job(type => 'send-reminder', payload => %s,
    due_at => %s, retry_policy => 'exponential(1s, 2, 1h)', tenant => 'acme')"""
SYNC = """SELECT id, created FROM jobwire.create_unique_job(type => 'sync-customer',
    unique_key => %s, payload => %s, tenant => 'acme')"""


def place_order(db: psycopg.Connection, order: int, customer: int) -> None:
    db.execute("INSERT INTO orders (number) VALUES (%s)", [order])

    payload = Json({"order": order})
    (invoice,) = db.execute(INVOICE, [payload, f"order-{order}"]).fetchone()
    print(f"order {order}: job {invoice}")

    due = datetime.now(timezone.utc) + timedelta(days=3)
    db.execute(REMINDER, [payload, due])

    sync = [f"customer-{customer}", Json({"customer": customer})]
    job, created = db.execute(SYNC, sync).fetchone()
    print(f"customer {customer}: job {job}, created: {created}")


with psycopg.connect(os.environ["DATABASE_URL"], autocommit=True) as db:
    with db.transaction():
        place_order(db, 17, 4)

    with db.transaction():
        place_order(db, 18, 5)
        raise psycopg.Rollback  # neither the order nor its jobs exist

    with db.transaction():
        place_order(db, 19, 4)  # the job of customer 4 exists already

    try:
        db.execute("SELECT jobwire.create_job(type => 'send-invoice', retries => 0)")
    except psycopg.errors.InvalidParameterValue as refused:
        print(f"SQLSTATE {refused.sqlstate}: {refused.diag.message_primary}")
