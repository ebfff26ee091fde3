UPDATE jobwire.job j SET lock_expires_at = clock_timestamp() + interval '1 day'
    FROM flight d WHERE NOT d.expired AND j.id = d.id AND j.lock_fence = d.fence AND j.lock_owner = '00000000-0000-4000-8000-000000000001' AND j.lock_expires_at > clock_timestamp();
