// River as a contender of the comparison kit (../README.md describes each command).
//
// Settings, `tuned`: those of River's own benchmark, which its documentation recommends over the defaults for speed:
// 2,000 workers, fetch cooldown 2 ms, poll interval 20 ms (riverqueue.com/docs/benchmarks). `defaults`: River's
// default cooldown (100 ms) and poll interval (1 s), with 100 workers. Both listen for notifications and complete in
// batches, as River always does. Bulk creation uses InsertManyFast, which uses COPY
// (riverqueue.com/docs/batch-job-insertion).
package main

import (
	"context"
	"encoding/binary"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"strconv"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/riverqueue/river"
	"github.com/riverqueue/river/riverdriver/riverpgxv5"
	"github.com/riverqueue/river/rivermigrate"
)

// Connections of the creators that use one transaction for each job: the maximum of concurrent transactions.
const creators = 16

// Constants of River's own benchmark: the jobs per insertion, and the jobs that it keeps waiting.
const (
	ownBatch = 5_000
	ownAhead = 75_000
)

type noop struct {
	N uint32 `json:"n"`
}

func (noop) Kind() string { return "noop" }

// worker only records the starts of jobs.
type worker struct {
	river.WorkerDefaults[noop]
	starts *starts
}

func (w *worker) Work(_ context.Context, job *river.Job[noop]) error {
	w.starts.note(job.Args.N, time.Now())
	return nil
}

// starts collects the starts of jobs and writes them every 10 ms: 4 bytes of number, 8 of microseconds, little-endian.
type starts struct {
	mutex  sync.Mutex
	buffer []byte
	file   *os.File
	count  atomic.Int64
}

func openStarts(path string) *starts {
	file, err := os.OpenFile(path, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	check(err)
	s := &starts{file: file}
	go func() {
		for range time.Tick(10 * time.Millisecond) {
			s.flush()
		}
	}()
	return s
}

func (s *starts) note(n uint32, at time.Time) {
	s.mutex.Lock()
	s.buffer = binary.LittleEndian.AppendUint32(s.buffer, n)
	s.buffer = binary.LittleEndian.AppendUint64(s.buffer, uint64(at.UnixMicro()))
	s.mutex.Unlock()
	s.count.Add(1)
}

func (s *starts) flush() {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	_, err := s.file.Write(s.buffer)
	check(err)
	s.buffer = s.buffer[:0]
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	defer stop()
	args := os.Args[1:]
	switch args[0] {
	case "setup":
		setup(ctx)
	case "fill":
		fill(ctx, number(args[1]))
	case "work":
		work(ctx, args[1], args[2])
	case "flow":
		flow(ctx, seconds(args[1]), number(args[2]), number(args[3]), number(args[4]), args[5], args[6])
	case "arrive":
		arrive(ctx, number(args[1]), number(args[2]), args[3], args[4])
	case "own":
		own(ctx, seconds(args[1]), args[2])
	default:
		check(fmt.Errorf("no command %q", args[0]))
	}
}

func setup(ctx context.Context) {
	pool := connect(ctx, 2)
	defer pool.Close()
	migrator, err := rivermigrate.New(riverpgxv5.New(pool), nil)
	check(err)
	_, err = migrator.Migrate(ctx, rivermigrate.DirectionUp, nil)
	check(err)
}

func fill(ctx context.Context, jobs int) {
	pool := connect(ctx, 2)
	defer pool.Close()
	client := inserter(pool, "tuned")
	for first := 0; first < jobs; first += ownBatch {
		insert(ctx, client, first, min(first+ownBatch, jobs))
	}
}

// work runs jobs until the process is asked to stop.
func work(ctx context.Context, path, profile string) {
	// The pool size of River's own benchmark: pgx's default, 4 or the number of processors, whichever is larger.
	pool := connect(ctx, 0)
	defer pool.Close()
	starts := openStarts(path)
	client := runner(pool, starts, profile)
	check(client.Start(context.WithoutCancel(ctx)))
	fmt.Println("ready")
	<-ctx.Done()
	check(client.Stop(context.Background()))
	starts.flush()
}

// flow creates jobs with several clients as fast as possible, but pauses while too many jobs wait to be started.
func flow(ctx context.Context, duration time.Duration, clients, batch, ahead int, path, profile string) {
	pool := connect(ctx, clients)
	defer pool.Close()
	client := inserter(pool, profile)
	var next atomic.Int64
	began := time.Now()
	var all sync.WaitGroup
	for range clients {
		all.Go(func() {
			for time.Since(began) < duration {
				if int(next.Load())-started(path) >= ahead {
					time.Sleep(time.Millisecond)
					continue
				}
				end := int(next.Add(int64(batch)))
				insert(ctx, client, end-batch, end)
			}
		})
	}
	all.Wait()
	fmt.Println("began", began.UnixMicro())
	fmt.Println("created", next.Load())
}

// arrive creates one job per transaction at a fixed rate, whether or not the previous one is committed.
func arrive(ctx context.Context, rate, jobs int, path, profile string) {
	pool := connect(ctx, creators)
	defer pool.Close()
	client := inserter(pool, profile)
	commits := make([]byte, jobs*20)
	began := time.Now()
	var all sync.WaitGroup
	for n := range jobs {
		due := began.Add(time.Duration(n) * time.Second / time.Duration(rate))
		time.Sleep(time.Until(due))
		all.Go(func() {
			_, err := client.Insert(ctx, noop{N: uint32(n)}, nil)
			check(err)
			note := commits[n*20:]
			binary.LittleEndian.PutUint32(note, uint32(n))
			binary.LittleEndian.PutUint64(note[4:], uint64(due.UnixMicro()))
			binary.LittleEndian.PutUint64(note[12:], uint64(time.Now().UnixMicro()))
		})
	}
	all.Wait()
	check(os.WriteFile(path, commits, 0o644))
}

// own creates and runs jobs in one process, as `river bench --duration` does.
func own(ctx context.Context, duration time.Duration, path string) {
	pool := connect(ctx, 0)
	defer pool.Close()
	starts := openStarts(path)
	client := runner(pool, starts, "tuned")
	created := 0
	for ; created < ownAhead; created += ownBatch {
		insert(ctx, client, created, created+ownBatch)
	}
	fmt.Println("ready")
	began := time.Now()
	check(client.Start(context.WithoutCancel(ctx)))
	for time.Since(began) < duration {
		if created-int(starts.count.Load()) < ownAhead {
			insert(ctx, client, created, created+ownBatch)
			created += ownBatch
		} else {
			time.Sleep(5 * time.Millisecond)
		}
	}
	fmt.Println("ended", time.Now().UnixMicro())
	fmt.Println("created", created)
	<-ctx.Done()
	check(client.Stop(context.Background()))
	starts.flush()
}

func connect(ctx context.Context, connections int) *pgxpool.Pool {
	config, err := pgxpool.ParseConfig(os.Getenv("DATABASE_URL"))
	check(err)
	if connections > 0 {
		config.MaxConns = int32(connections)
		config.MinConns = int32(connections)
	}
	pool, err := pgxpool.NewWithConfig(context.WithoutCancel(ctx), config)
	check(err)
	check(pool.Ping(ctx))
	return pool
}

// inserter returns a client that only creates jobs. Its settings matter, too: it sends at most one notification per
// fetch cooldown.
func inserter(pool *pgxpool.Pool, profile string) *river.Client[pgx.Tx] {
	client, err := river.NewClient(riverpgxv5.New(pool), configured(profile))
	check(err)
	return client
}

func runner(pool *pgxpool.Pool, starts *starts, profile string) *river.Client[pgx.Tx] {
	config := configured(profile)
	config.Workers = river.NewWorkers()
	river.AddWorker(config.Workers, &worker{starts: starts})
	most := map[string]int{"tuned": 2_000, "defaults": 100}[profile]
	config.Queues = map[string]river.QueueConfig{river.QueueDefault: {MaxWorkers: most}}
	client, err := river.NewClient(riverpgxv5.New(pool), config)
	check(err)
	return client
}

func configured(profile string) *river.Config {
	config := &river.Config{Logger: logger()}
	switch profile {
	case "tuned":
		config.FetchCooldown = 2 * time.Millisecond
		config.FetchPollInterval = 20 * time.Millisecond
	case "defaults":
	default:
		check(fmt.Errorf("no profile %q", profile))
	}
	return config
}

func insert(ctx context.Context, client *river.Client[pgx.Tx], from, to int) {
	jobs := make([]river.InsertManyParams, 0, to-from)
	for n := from; n < to; n++ {
		jobs = append(jobs, river.InsertManyParams{Args: noop{N: uint32(n)}})
	}
	_, err := client.InsertManyFast(ctx, jobs)
	check(err)
}

// started returns the number of starts in the file of the worker, which is another process.
func started(path string) int {
	info, err := os.Stat(path)
	if err != nil {
		return 0
	}
	return int(info.Size() / 12)
}

func logger() *slog.Logger {
	return slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelWarn}))
}

func number(text string) int {
	value, err := strconv.Atoi(text)
	check(err)
	return value
}

func seconds(text string) time.Duration { return time.Duration(number(text)) * time.Second }

func check(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, "river:", err)
		os.Exit(1)
	}
}
