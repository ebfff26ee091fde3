package jobwire.engines;

import com.zaxxer.hikari.HikariConfig;
import com.zaxxer.hikari.HikariDataSource;

/** Connections to the database. */
public final class Pool {
    private Pool() {}

    /** Opens a pool, which connects on demand. */
    public static HikariDataSource open(Settings settings, String name, int connections) {
        HikariConfig config = new HikariConfig();
        config.setPoolName(name);
        config.setJdbcUrl(settings.jdbcUrl());
        config.setUsername(settings.databaseUser());
        config.setPassword(settings.databasePassword());
        config.setMaximumPoolSize(connections);
        config.setMinimumIdle(0);
        // As on PostgreSQL: MariaDB would read old rows.
        config.setTransactionIsolation("TRANSACTION_READ_COMMITTED");
        return new HikariDataSource(config);
    }
}
