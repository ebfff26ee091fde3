EXPLAIN (ANALYZE, TIMING OFF) SELECT job_id FROM jobwire.job_lease WHERE owner IS NOT NULL AND expires_at <= clock_timestamp() ORDER BY job_id LIMIT 5000;
