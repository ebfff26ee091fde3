EXPLAIN (ANALYZE, TIMING OFF) SELECT id FROM jobwire.job WHERE lock_owner IS NOT NULL AND lock_expires_at <= clock_timestamp() ORDER BY id LIMIT 5000;
