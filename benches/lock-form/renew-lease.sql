UPDATE jobwire.job_lease l SET expires_at = clock_timestamp() + interval '1 day', started_at = coalesce(l.started_at, l.locked_at)
    FROM flight d WHERE NOT d.expired AND l.job_id = d.id AND l.fence = d.fence AND l.owner = '00000000-0000-4000-8000-000000000001' AND l.expires_at > clock_timestamp();
