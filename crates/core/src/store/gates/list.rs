//! The statement that lists the suspensions and pauses, the same on every database.

/// Counts the jobs of a table by the value of a scope. Reads none if no suspension or pause has this
/// scope.
macro_rules! count_of {
    ($schema:literal, $table:literal, $column:expr, $scope:literal, $and:expr) => {
        concat!(
            "SELECT '",
            $scope,
            "' AS scope, ",
            $column,
            " AS value, count(*) AS jobs FROM ",
            $schema,
            $table,
            " j WHERE EXISTS (SELECT 1 FROM ",
            $schema,
            "suspension WHERE scope = '",
            $scope,
            "')",
            $and,
            " GROUP BY 2"
        )
    };
}

/// Counts jobs in the suspended table.
macro_rules! moved_of {
    ($schema:literal, $column:expr, $scope:literal) => {
        $crate::store::gates::list::count_of!($schema, "suspended_job", $column, $scope, "")
    };
}

/// Counts unlocked jobs in the executable table.
macro_rules! waiting_of {
    ($schema:literal, $column:expr, $scope:literal, $and:literal) => {
        $crate::store::gates::list::count_of!(
            $schema,
            "job",
            $column,
            $scope,
            concat!(
                " AND NOT EXISTS (SELECT 1 FROM ",
                $schema,
                "job_lease l WHERE l.job_id = j.id AND l.owner IS NOT NULL)",
                $and
            )
        )
    };
}

/// Lists the suspensions and pauses: scope, value, since, moved, waiting.
macro_rules! list {
    ($schema:literal) => {
        concat!(
            "
WITH moved AS (
    ",
            $crate::store::gates::list::moved_of!($schema, "process_instance", "process_instance"),
            " UNION ALL ",
            $crate::store::gates::list::moved_of!(
                $schema,
                "process_definition",
                "process_definition"
            ),
            " UNION ALL ",
            $crate::store::gates::list::moved_of!(
                $schema,
                $crate::store::sql::definition_key_of!("j"),
                "definition_key"
            ),
            " UNION ALL ",
            $crate::store::gates::list::moved_of!(
                $schema,
                $crate::store::sql::element_of!("j"),
                "element"
            ),
            " UNION ALL ",
            $crate::store::gates::list::moved_of!($schema, "type", "type"),
            " UNION ALL ",
            $crate::store::gates::list::moved_of!($schema, "tenant", "tenant"),
            "
), waiting AS (
    ",
            $crate::store::gates::list::waiting_of!(
                $schema,
                "process_instance",
                "process_instance",
                ""
            ),
            " UNION ALL ",
            $crate::store::gates::list::waiting_of!(
                $schema,
                "process_definition",
                "process_definition",
                ""
            ),
            " UNION ALL ",
            $crate::store::gates::list::waiting_of!(
                $schema,
                $crate::store::sql::definition_key_of!("j"),
                "definition_key",
                ""
            ),
            " UNION ALL ",
            $crate::store::gates::list::waiting_of!(
                $schema,
                $crate::store::sql::element_of!("j"),
                "element",
                ""
            ),
            " UNION ALL ",
            $crate::store::gates::list::waiting_of!($schema, "type", "type", ""),
            " UNION ALL ",
            $crate::store::gates::list::waiting_of!($schema, "tenant", "tenant", ""),
            " UNION ALL ",
            $crate::store::gates::list::waiting_of!($schema, "type", "pause_type", ""),
            " UNION ALL ",
            $crate::store::gates::list::waiting_of!($schema, "category", "pause_category", ""),
            " UNION ALL ",
            $crate::store::gates::list::waiting_of!(
                $schema,
                "lane",
                "pause_lane",
                " AND j.type <> 'jobwire.suspension'"
            ),
            " UNION ALL ",
            $crate::store::gates::list::waiting_of!(
                $schema,
                "''",
                "pause_all",
                " AND j.type <> 'jobwire.suspension'"
            ),
            "
)
SELECT s.scope, s.value, s.since, coalesce(m.jobs, 0), coalesce(w.jobs, 0)
FROM ",
            $schema,
            "suspension s
LEFT JOIN moved m ON m.scope = s.scope AND m.value = s.value
LEFT JOIN waiting w ON w.scope = s.scope AND w.value = s.value
ORDER BY s.since, s.scope, s.value"
        )
    };
}

pub(in crate::store) use {count_of, list, moved_of, waiting_of};
