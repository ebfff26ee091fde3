package dev.jobwire.tables;

import java.math.BigDecimal;
import java.sql.Connection;
import java.sql.PreparedStatement;
import java.sql.ResultSet;
import java.sql.SQLException;
import java.time.Instant;
import java.util.Locale;

/** The differences between databases: the clock, and the lock of a row without a wait. */
public enum Database {
    /** MySQL 8, and MariaDB 10.6 or later. */
    MYSQL("SELECT TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(3)) / 1000000"),
    /** Oracle. */
    ORACLE("SELECT (CAST(SYS_EXTRACT_UTC(SYSTIMESTAMP) AS DATE) - DATE '1970-01-01') * 86400"
            + " + MOD(EXTRACT(SECOND FROM SYSTIMESTAMP), 1) FROM DUAL"),
    /** SQL Server. */
    MSSQL("SELECT CAST(DATEDIFF_BIG(MILLISECOND, '1970-01-01', SYSUTCDATETIME()) AS DECIMAL(20, 3))"
            + " / 1000"),
    /** PostgreSQL. */
    POSTGRES("SELECT EXTRACT(EPOCH FROM CLOCK_TIMESTAMP())"),
    /** H2. */
    H2("SELECT EXTRACT(EPOCH FROM CURRENT_TIMESTAMP)");

    private final String clock;

    Database(String clock) {
        this.clock = clock;
    }

    /** Returns the database with this product name. */
    public static Database of(Connection connection) throws SQLException {
        String product = connection.getMetaData().getDatabaseProductName();
        String name = product.toLowerCase(Locale.ROOT);
        if (name.contains("mysql") || name.contains("mariadb")) {
            return MYSQL;
        }
        if (name.contains("oracle")) {
            return ORACLE;
        }
        if (name.contains("microsoft")) {
            return MSSQL;
        }
        if (name.contains("postgresql")) {
            return POSTGRES;
        }
        if (name.equals("h2")) {
            return H2;
        }
        throw new IllegalStateException("Jobwire does not know the database " + product);
    }

    /** Returns the hint that follows the name of a table whose rows are locked. */
    String hint() {
        return this == MSSQL ? " WITH (UPDLOCK, ROWLOCK, READPAST)" : "";
    }

    /** Returns the end of a statement that locks rows and skips the rows of other transactions. */
    String suffix() {
        return this == MSSQL ? "" : " FOR UPDATE SKIP LOCKED";
    }

    /** Reads the time. */
    Instant now(Connection connection) throws SQLException {
        try (PreparedStatement ask = connection.prepareStatement(clock);
                ResultSet row = ask.executeQuery()) {
            row.next();
            BigDecimal seconds = row.getBigDecimal(1);
            return Instant.ofEpochMilli(seconds.movePointRight(3).longValue());
        }
    }
}
