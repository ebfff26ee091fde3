// Creates jobs in a transaction of pgx.
package main

import (
	"context"
	"errors"
	"fmt"
	"log"
	"os"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

const (
	invoice = `SELECT jobwire.create_job(type => 'send-invoice', payload => $1::json,
		process_instance => $2, retries => 5, tenant => 'acme')::text`
	reminder = `SELECT jobwire.create_job(type => 'send-reminder', payload => $1::json,
		due_at => $2, retry_policy => 'exponential(1s, 2, 1h)', tenant => 'acme')`
	sync = `SELECT id::text, created FROM jobwire.create_unique_job(type => 'sync-customer',
		unique_key => $1, payload => $2, tenant => 'acme')`
)

func placeOrder(ctx context.Context, tx pgx.Tx, order, customer int) error {
	if _, err := tx.Exec(ctx, "INSERT INTO orders (number) VALUES ($1)", order); err != nil {
		return err
	}

	payload := map[string]int{"order": order}
	var id string
	instance := fmt.Sprintf("order-%d", order)
	if err := tx.QueryRow(ctx, invoice, payload, instance).Scan(&id); err != nil {
		return err
	}
	fmt.Printf("order %d: job %s\n", order, id)

	due := time.Now().Add(3 * 24 * time.Hour)
	if _, err := tx.Exec(ctx, reminder, payload, due); err != nil {
		return err
	}

	var created bool
	key, payload := fmt.Sprintf("customer-%d", customer), map[string]int{"customer": customer}
	if err := tx.QueryRow(ctx, sync, key, payload).Scan(&id, &created); err != nil {
		return err
	}
	fmt.Printf("customer %d: job %s, created: %t\n", customer, id, created)
	return nil
}

var errOutOfStock = errors.New("out of stock")

func run(ctx context.Context) error {
	db, err := pgx.Connect(ctx, os.Getenv("DATABASE_URL"))
	if err != nil {
		return err
	}
	defer db.Close(ctx)

	err = pgx.BeginFunc(ctx, db, func(tx pgx.Tx) error {
		return placeOrder(ctx, tx, 17, 4)
	})
	if err != nil {
		return err
	}

	// An error rolls back: neither the order nor its jobs exist.
	err = pgx.BeginFunc(ctx, db, func(tx pgx.Tx) error {
		if err := placeOrder(ctx, tx, 18, 5); err != nil {
			return err
		}
		return errOutOfStock
	})
	if !errors.Is(err, errOutOfStock) {
		return err
	}

	// The job of customer 4 exists already.
	err = pgx.BeginFunc(ctx, db, func(tx pgx.Tx) error {
		return placeOrder(ctx, tx, 19, 4)
	})
	if err != nil {
		return err
	}

	_, err = db.Exec(ctx, "SELECT jobwire.create_job(type => 'send-invoice', retries => 0)")
	var refused *pgconn.PgError
	if !errors.As(err, &refused) {
		return fmt.Errorf("it was not refused: %w", err)
	}
	fmt.Printf("SQLSTATE %s: %s\n", refused.Code, refused.Message)
	return nil
}

func main() {
	if err := run(context.Background()); err != nil {
		log.Fatal(err)
	}
}
