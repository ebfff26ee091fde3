// Creates jobs in a transaction of database/sql.
package main

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"log"
	"os"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
	_ "github.com/jackc/pgx/v5/stdlib"
)

const (
	invoice = `SELECT jobwire.create_job(type => 'send-invoice', payload => $1::json,
		process_instance => $2, retries => 5, tenant => 'acme')`
	reminder = `SELECT jobwire.create_job(type => 'send-reminder', payload => $1::json,
		due_at => $2, retry_policy => 'exponential(1s, 2, 1h)', tenant => 'acme')`
	sync = `SELECT id, created FROM jobwire.create_unique_job(type => 'sync-customer',
		unique_key => $1, payload => $2::json, tenant => 'acme')`
)

func placeOrder(ctx context.Context, tx *sql.Tx, order, customer int) error {
	if _, err := tx.ExecContext(ctx, "INSERT INTO orders (number) VALUES ($1)", order); err != nil {
		return err
	}

	payload := fmt.Sprintf(`{"order": %d}`, order)
	var id string
	instance := fmt.Sprintf("order-%d", order)
	if err := tx.QueryRowContext(ctx, invoice, payload, instance).Scan(&id); err != nil {
		return err
	}
	fmt.Printf("order %d: job %s\n", order, id)

	due := time.Now().Add(3 * 24 * time.Hour)
	if _, err := tx.ExecContext(ctx, reminder, payload, due); err != nil {
		return err
	}

	var created bool
	key, payload := fmt.Sprintf("customer-%d", customer), fmt.Sprintf(`{"customer": %d}`, customer)
	if err := tx.QueryRowContext(ctx, sync, key, payload).Scan(&id, &created); err != nil {
		return err
	}
	fmt.Printf("customer %d: job %s, created: %t\n", customer, id, created)
	return nil
}

func run(ctx context.Context) error {
	db, err := sql.Open("pgx", os.Getenv("DATABASE_URL"))
	if err != nil {
		return err
	}
	defer db.Close()

	for _, order := range []struct{ number, customer int }{{17, 4}, {18, 5}, {19, 4}} {
		tx, err := db.BeginTx(ctx, nil)
		if err != nil {
			return err
		}
		if err := placeOrder(ctx, tx, order.number, order.customer); err != nil {
			return errors.Join(err, tx.Rollback())
		}
		end := tx.Commit
		if order.number == 18 {
			end = tx.Rollback // neither the order nor its jobs exist
		}
		if err := end(); err != nil {
			return err
		}
	}

	_, err = db.ExecContext(ctx, "SELECT jobwire.create_job(type => 'send-invoice', retries => 0)")
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
